"""The engine for asyncio: many tasks, each with its own output, and nothing left behind."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest

from kvhouse.engine import AsyncEngine, SamplingParams
from kvhouse.errors import KvhouseError, RequestRejected

PARAMS = SamplingParams(temperature=1.5, seed=3, ignore_eos=True)
ASKED = [[1, 2, 3], [4, 5], [6] * 20, [7, 8, 9, 10], [11]]


def free(engine: AsyncEngine) -> bool:
    inner = engine.engine
    memory = inner.scheduler.memory
    return memory.free_blocks == memory.total_blocks and not inner.executor.requests


async def until_free(engine: AsyncEngine) -> None:
    """Let the engine's thread carry out what it was told; it does so before its next step."""
    obeyed = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    engine._commands.put(lambda: loop.call_soon_threadsafe(obeyed.set_result, None))
    await asyncio.wait_for(obeyed, 60)
    assert free(engine)


async def collected(stream) -> tuple[int, ...]:
    return tuple([token.id async for token in stream])


def test_many_tasks_at_once_get_their_own_answers(tiny):
    want = [tiny().generate([prompt], 12, PARAMS, n=2) for prompt in ASKED]

    async def ask():
        async with AsyncEngine(tiny(prefix_cache=True)) as engine:
            streams = [engine.stream(prompt, 12, PARAMS) for prompt in ASKED]
            tasks = [
                *(collected(stream) for stream in streams),
                *(engine.generate([prompt], 12, PARAMS, n=2) for prompt in ASKED),
                engine.generate(ASKED, 12, PARAMS),
            ]
            results = await asyncio.gather(*tasks)
            assert free(engine)
            return results

    *results, together = asyncio.run(ask())
    streamed, generated = results[: len(ASKED)], results[len(ASKED) :]
    ids = [[completion.token_ids for completion in completions] for completions in want]
    assert streamed == [first for first, _ in ids]
    assert [[c.token_ids for c in completions] for completions in generated] == ids
    assert [c.token_ids for c in together] == [first for first, _ in ids]


def test_a_cancelled_task_and_a_closed_stream_free_before_the_next_step(tiny):
    expected = tiny().generate([[4, 5]], 60, PARAMS)[0].token_ids

    async def ask():
        async with AsyncEngine(tiny()) as engine:
            task = asyncio.create_task(engine.generate([[1, 2, 3]], 200, PARAMS))
            other = asyncio.create_task(engine.generate([[4, 5]], 60, PARAMS))
            async with aclosing(engine.stream([6, 7], 200, PARAMS)) as stream:
                async for token in stream:
                    assert token.finish_reason is None
                    break
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            (completion,) = await other
            assert completion.token_ids == expected
            await until_free(engine)
            steps = engine.engine.scheduler.steps
            assert steps < 200
            await until_free(engine)
            assert engine.engine.scheduler.steps == steps  # nobody is left to work for

    asyncio.run(ask())


def test_closing_ends_the_thread_and_says_so_to_whoever_waits(tiny):
    async def ask():
        engine = AsyncEngine(tiny())
        task = asyncio.create_task(engine.generate([[1, 2, 3]], 200, PARAMS))
        stream = engine.stream([4], 200, PARAMS)
        await anext(stream)
        await engine.close()
        with pytest.raises(KvhouseError, match="the engine was closed"):
            await task
        with pytest.raises(KvhouseError, match="the engine was closed"):
            await collected(stream)
        with pytest.raises(KvhouseError, match="the engine is closed"):
            await engine.generate([[1]], 1)
        assert free(engine)
        await engine.close()

    before = threading.active_count()
    asyncio.run(ask())
    assert not any(thread.name == "kvhouse-engine" for thread in threading.enumerate())
    assert threading.active_count() == before


def test_impossible_requests_and_failures_reach_their_task_alone(tiny, monkeypatch):
    async def ask():
        async with AsyncEngine(tiny(max_length=100)) as engine:
            with pytest.raises(KvhouseError, match=r"give a single one as \[prompt\]"):
                await engine.generate([1, 2], 4)
            good = asyncio.create_task(engine.generate([[1, 2]], 20, PARAMS))
            with pytest.raises(RequestRejected, match="the prompt is empty"):
                await engine.generate([[1, 2], []], 4)
            with pytest.raises(RequestRejected, match="exceed the maximum length"):
                await collected(engine.stream([1], 100))
            assert len((await good)[0].token_ids) == 20
            assert await engine.generate([], 4) == []
            forward = engine.engine.executor.adapter.forward

            def broken(_):
                raise MemoryError("no room")

            monkeypatch.setattr(engine.engine.executor.adapter, "forward", broken)
            with pytest.raises(MemoryError, match="no room"):
                await engine.generate([[1, 2]], 20, PARAMS)
            monkeypatch.setattr(
                engine.engine.executor.adapter, "forward", lambda step: forward(step) * float("nan")
            )
            with pytest.raises(KvhouseError, match="no finite logits"):
                await collected(engine.stream([1, 2], 20, PARAMS))
            monkeypatch.setattr(engine.engine.executor.adapter, "forward", forward)
            assert len((await engine.generate([[1, 2]], 20, PARAMS))[0].token_ids) == 20
            await until_free(engine)

    asyncio.run(ask())


def test_an_event_loop_that_is_gone_holds_nothing(tiny):
    """Nobody is left to take its tokens, nor to say that they are not wanted."""
    engine = AsyncEngine(tiny())

    async def begin():
        await engine.ask([[1, 2, 3]], 250, PARAMS).take()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()

    async def ask():
        async with engine:
            (completion,) = await engine.generate([[4, 5]], 60, PARAMS)
            assert len(completion.token_ids) == 60
            assert engine.engine.scheduler.steps < 250
            await until_free(engine)

    asyncio.run(ask())


def test_prompts_of_a_conversation_are_made_in_the_engines_thread(tiny):
    async def ask():
        async with AsyncEngine(tiny()) as engine:
            with pytest.raises(RequestRejected, match="no chat template"):
                await engine.chat_prompt([{"role": "user", "content": "Hi"}])
            threads = []

            def chat_prompt(turns):
                threads.append(threading.current_thread().name)
                return [len(turns)]

            engine.engine.chat_prompt = chat_prompt
            prompts = await asyncio.gather(*(engine.chat_prompt([{}] * n) for n in (1, 2, 3)))
            assert prompts == [[1], [2], [3]]
            assert set(threads) == {"kvhouse-engine"}
        with pytest.raises(KvhouseError, match="the engine is closed"):
            await engine.chat_prompt([])

    asyncio.run(ask())


def test_a_look_that_nobody_waits_for_any_more_ends_nothing(tiny):
    inner = tiny()
    begun, gate, execute = threading.Event(), threading.Event(), inner.executor.execute

    def held(plan):
        begun.set()
        gate.wait(60)
        return execute(plan)

    inner.executor.execute = held

    async def ask():
        async with AsyncEngine(inner) as engine:
            task = asyncio.create_task(engine.generate([[1, 2, 3]], 4, PARAMS))
            await asyncio.to_thread(begun.wait, 60)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await engine.look(lambda one: one.scheduler.steps)
            gate.set()
            (completion,) = await asyncio.wait_for(task, 20)
            assert len(completion.token_ids) == 4
            assert await engine.look(lambda one: one.scheduler.steps) == 4

    asyncio.run(ask())


def test_where_the_thread_itself_fails_nobody_waits_for_ever(tiny, monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda told: seen.append(told.exc_value))
    inner = tiny()

    def broken(_):
        raise RuntimeError("broken")

    async def ask():
        engine = AsyncEngine(inner)
        waiting = asyncio.create_task(engine.generate([[1, 2, 3]], 250, PARAMS))
        other = engine.ask([[4, 5]], 250, PARAMS)
        await other.take()
        monkeypatch.setattr(inner.scheduler, "cancel", broken)
        engine.drop(other)
        with pytest.raises(KvhouseError, match="the engine was closed"):
            await asyncio.wait_for(waiting, 20)
        with pytest.raises(KvhouseError, match="the engine is closed"):
            engine.ask([[1]], 1)
        await engine.close()
        assert not engine.alive

    asyncio.run(ask())
    assert "broken" in {str(one) for one in seen}


def test_tenants_share_nothing(tiny, monkeypatch):
    """Of 12 tokens in blocks of 4, two blocks are found again by the same tenant alone."""
    engine = tiny(prefix_cache=True)
    computed, execute = [], engine.executor.execute

    def counting(plan):
        computed.append(plan.tokens)
        return execute(plan)

    monkeypatch.setattr(engine.executor, "execute", counting)

    async def ask():
        async with AsyncEngine(engine) as serving:
            for salt in ("one", "two", "one"):
                await serving.generate([[5] * 12], 1, salt=salt)
            await collected(serving.stream([5] * 12, 1, salt="two"))
            await collected(serving.stream([5] * 12, 1))

    asyncio.run(ask())
    assert computed == [12, 12, 4, 4, 12]


def test_it_loads_a_model(tiny_directory):
    async def ask():
        async with await AsyncEngine.load(tiny_directory("llama-gqa")) as engine:
            return await engine.generate([[5, 6, 7]], 3)

    (completion,) = asyncio.run(ask())
    assert len(completion.token_ids) == 3

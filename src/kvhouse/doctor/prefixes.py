"""Who said a line: workers and containers name themselves before what they say."""

from __future__ import annotations

import re

#: A prefix is looked for in so many characters.
_HEAD = 320
_WORKER = re.compile(
    r"\((?P<vllm>(?:Vllm)?Worker(?:Proc(?:ess)?)?[ _]?[\w= ]{0,40}?|EngineCore[\w]{0,24}|"
    r"APIServer[\w]{0,12}|RayWorkerWrapper|RayWorkerVllm|RayTrainWorker)"
    r" ?pid=(?P<pid>\d{1,9})[^)]{0,80}\)"
    r"|\((?:head|worker\d{0,4}), rank=(?P<node>\d{1,5})[^)]{0,40}\)"
    r"|\[rank(?P<rank>\d{1,5})\]"
    r"|\[RANK (?P<trt>\d{1,5})\]"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    r"(?P<sglang>(?: (?:DP|TP|PP|EP|MOE_DP|ATTN_TP)\d{1,4}){1,6})\]"
)
#: docker compose (``name-1  | …``), kubectl with --prefix (``[pod/name/container] …``), stern.
_CONTAINER = re.compile(
    r"^(?:(?P<compose>[\w.\-]{1,80}?) {1,24}\| |\[pod/(?P<pod>[\w.\-/]{1,200})\] )"
)


def worker_of(text: str) -> str:
    """The name of the worker that a line is from, such as ``Worker_TP1``; empty if it names none.

    Process ids tell workers apart only where nothing else does.
    """
    head = text[:_HEAD]
    found = _CONTAINER.match(head)
    container = (found["compose"] or found["pod"]) if found else ""
    named = _WORKER.search(head)
    worker = "" if named is None else _name(named)
    return f"{container}:{worker}" if container and worker else container or worker


def _name(found: re.Match[str]) -> str:
    if found["vllm"]:
        name = found["vllm"].strip()
        return f"{name} {found['pid']}" if name in _ALIKE else name
    if found["sglang"]:
        return found["sglang"].strip()
    return f"rank {found['node'] or found['rank'] or found['trt']}"


#: Names that all workers of a server share.
_ALIKE = frozenset({"VllmWorkerProcess", "VllmWorker", "Worker", "RayWorkerWrapper"})

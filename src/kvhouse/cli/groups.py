"""Options that belong together, as one value.

typer takes a command's options from its signature and knows no structure in them. A *group* is a
frozen dataclass whose fields are options, each an ``Annotated`` type with a default. A command that
is ``grouped`` names a group as one parameter; typer is shown its fields in that place, and the
command is given the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, get_args, get_type_hints

from typer.models import OptionInfo


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each of its groups spread out in its signature.

    Its parameters can then be given by name only, as typer does.

    Raises:
        TypeError: A field of a group has no default.
    """
    own = signature(command, eval_str=True)
    groups = {name: p.annotation for name, p in own.parameters.items() if _is_group(p.annotation)}

    @wraps(command)
    def spread(**values: Any) -> None:  # noqa: ANN401 - whatever the options are
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    shown: list[Parameter] = []
    for name, parameter in own.parameters.items():
        if name in groups:
            shown += _parameters(groups[name])
        else:
            shown.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    spread.__dict__["__signature__"] = own.replace(parameters=shown)
    return spread


def given(group: Any) -> tuple[str, ...]:  # noqa: ANN401 - any dataclass
    """The options of a group that are not as they are by default, as they are written."""
    hints = get_type_hints(type(group), include_extras=True)
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return tuple(
        _written(field.name, hints[field.name], off=values[field.name] is False)
        for field in fields(group)
        if values[field.name] != field.default
    )


def _is_group(annotation: object) -> bool:
    """Whether a parameter of this type stands for several options."""
    return isinstance(annotation, type) and is_dataclass(annotation)


def _parameters(group: type) -> Iterator[Parameter]:
    """The fields of a group as parameters of a function.

    Raises:
        TypeError: One has no default, and a group is made of options.
    """
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        if field.default is MISSING:
            raise TypeError(f"{group.__name__}.{field.name}: give it a default")
        yield Parameter(
            field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )


def _written(name: str, hint: object, *, off: bool) -> str:
    """An option's name; of ``--this/--no-this`` the second where it was turned ``off``."""
    written = "--" + name.replace("_", "-")
    for about in get_args(hint)[1:]:
        if isinstance(about, OptionInfo) and isinstance(about.default, str):
            written = about.default
    on, _, negative = written.partition("/")
    return negative if off and negative else on

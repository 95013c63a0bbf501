"""An object of our own file, read strictly."""

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from node.config.refused import Refused, because, shown

# Of each model: ruff has to see that it is pydantic's, so there is no class to inherit this from.
STRICT: Final = ConfigDict(strict=True, extra="forbid")
Taken = TypeVar("Taken", bound=BaseModel)


def take(model: type[Taken], value: Any, path: str) -> Taken:
    """The object at that place of the file.  Raises Refused."""
    if not isinstance(value, dict):
        raise Refused(f"{path} {shown(value)} is not an object; write it in {{ }}")
    try:
        return model.model_validate(value)
    except ValidationError as e:
        raise because(e, model, path) from e

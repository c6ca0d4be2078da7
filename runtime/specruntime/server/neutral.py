"""Fields that are known and cannot be honoured: they take the values that ask for nothing."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from specruntime.manifest.messages import UNSUPPORTED


@dataclass(frozen=True, init=False)
class Neutral:
    """Annotates a field of type `Any`: lets null (where `null`) and `values` pass, and refuses others with `why`.

    Clients dump fields that this server cannot carry out with a value that asks for nothing (`"tools": null`, `"store":
    false`), so those are accepted; an answer without what another value asks for would be wrong in silence.
    """

    values: tuple[Any, ...]
    why: str

    def __init__(self, *values: Any, why: str, null: bool = True) -> None:
        object.__setattr__(self, "values", (*((None,) if null else ()), *values))
        object.__setattr__(self, "why", why)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": list(self.values), "description": f"nothing else: {self.why}"}

    def _check(self, found: Any) -> Any:
        # 1 == True in Python, and not in JSON.
        if any(type(found) is type(value) and found == value for value in self.values):
            return found
        # Written into the message and not into the template: JSON has braces.
        raise PydanticCustomError(UNSUPPORTED, "{text}", {"text": self._expectation()})

    def _expectation(self) -> str:
        return f"{' or '.join(json.dumps(value) for value in self.values)}; {self.why}"


class ClosedBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

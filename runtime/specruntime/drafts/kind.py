"""What the runtime must know of a kind of draft: one class, which is the kind's section of the manifest as well."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar, get_args

from specruntime.drafts.draft import Draft
from specruntime.engines.protocol import Context
from specruntime.errors import InvalidArgument
from specruntime.manifest.contracts import Contract
from specruntime.manifest.graph import GraphSpec, Profile
from specruntime.manifest.numbers import Closed, Size


class Named(Protocol):
    """A class that describes the kinds of these names."""

    @classmethod
    def names(cls) -> tuple[str, ...]: ...


Kind = TypeVar("Kind", bound=Named)


def add_kind(kinds: list[type[Kind]], kind: type[Kind], renew: Callable[[], None]) -> Callable[[], None]:
    """Add a kind to `kinds` and call `renew`, which makes the schema again. What is returned takes it out again.

    Raises `InvalidArgument` where another kind has one of its names.
    """
    taken = {name for known in kinds for name in known.names()}
    if odd := sorted(taken.intersection(kind.names())):
        raise InvalidArgument(f"found another draft kind named {odd[0]!r}, expected a name of its own")
    kinds.append(kind)
    renew()

    def remove() -> None:
        kinds.remove(kind)
        renew()

    return remove


class DraftSpec(Closed):
    """A kind of draft. Its fields are the keys of its section, `kind` among them as a `Literal` of its names.

    A kind with a graph of its own has a field `graph` and a `contract`. The methods say what depends on the kind;
    those that are not overridden are right for a chain that is drafted step by step.
    """

    contract: ClassVar[Contract | None] = None
    """What its own graph must look like."""
    free: ClassVar[bool] = False
    """Proposing costs next to nothing: a dynamic length asks it every round and judges it by what was committed."""
    c_numbers: ClassVar[Mapping[str, tuple[int, str]]] = {}
    """Its number and description in the C header, by name. Numbers are never reused; kinds from elsewhere have none."""

    if TYPE_CHECKING:  # each kind has these as a field or as a property

        @property
        def kind(self) -> str: ...

        @property
        def k(self) -> int:
            """The most tokens that one round can accept of it; 0: it proposes nothing."""

        @property
        def nodes(self) -> int:
            """The most tokens that it puts into a window; 0: it proposes nothing."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the values of `kind` that this class describes."""
        return get_args(cls.model_fields["kind"].annotation)

    @property
    def own_graph(self) -> GraphSpec | None:
        """The draft's own graph; None for a draft without one."""
        graph: GraphSpec | None = getattr(self, "graph", None)
        return graph

    @property
    def grows_trees(self) -> bool:
        """Whether its proposals are trees rather than chains."""
        return False

    @property
    def width_key(self) -> str:
        """The key that says how many `nodes` there are, for messages."""
        return "draft.k"

    @property
    def c_number(self) -> int:
        """Its number in the C header; -1 for a kind that the header does not name."""
        return self.c_numbers.get(self.kind, (-1, ""))[0]

    def check(self, target: GraphSpec) -> None:
        """Raise `BundleInvalid` for what contradicts itself or the target.

        Both graphs have been checked by themselves; that the target judges `nodes` rows is checked afterwards.
        """

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        """Return a draft for one session.

        `own` is a fresh context of `own_graph`, which the draft closes; None without such a graph. `target` is the
        session's context, which the session closes, and `vocab_size` the target's.
        """
        raise NotImplementedError

    def timed_profiles(self, target: GraphSpec) -> tuple[Profile, ...]:
        """Return the profiles that it drafts with, which the build host may have timed."""
        return () if self.own_graph is None else self.own_graph.profiles

    def first_seconds(self, size: int, step: float, times: Mapping[str, float]) -> float:
        """Return what drafting `size` tokens is expected to take before a session has measured it.

        `times` are seconds of `timed_profiles` by name where the build host timed them, `step` the shortest of them.
        """
        return size * step


class ChainSpec(DraftSpec):
    """A kind whose drafts follow each other in one line."""

    k: Size

    @property
    def nodes(self) -> int:
        return self.k

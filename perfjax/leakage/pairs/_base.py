"""What a pair of a mechanism and a leakage rule knows, and where pairs are found."""

import abc
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from perfjax._normals import score_rule
from perfjax.leakage._base import AbstractLeakage
from perfjax.leakage.pairs.blocks import Keys, UserRelease
from perfjax.mechanisms import AbstractMechanism

__all__ = ["AbstractIndependentPair", "AbstractPair", "CriticalNoise", "Gap", "LeakDistribution", "Split", "pair_of"]

_T = TypeVar("_T")


class Split(NamedTuple):
    """How a release splits the users: P(leaked) and P(spared), neither one 1 minus the other where tiny.

    Of the pairs of perfjax, the error is at most 1e-9 in float64 and 1e-5 in float32; of a mean whose clipping binds,
    1e-3 relative.
    """

    leaked: Float[Array, "..."]
    spared: Float[Array, "..."]


class LeakDistribution(NamedTuple):
    """The distribution of the leaked count K among n users, given the noise that they share.

    Attributes:
        leaked: p, the probability that a user is leaked.
        spared: 1 - p.
        spread: Var(K) / n, held to at most p (1 - p). Of a Gaussian mean by the likelihood ratio it is the limit for
            many users: wrong by up to 10 % at n = 3, 6 % at n = 10 and 2 % at n = 30, found by sampling. The rest is
            exact for any n.
        both: for n = 2, the probability that both are leaked.
    """

    leaked: Float[Array, ""]
    spared: Float[Array, ""]
    spread: Float[Array, ""]
    both: Float[Array, ""]


class CriticalNoise(NamedTuple):
    """The noise at which the expected population neither grows nor shrinks, as a theorem has it.

    Attributes:
        value: in units of the mechanism's noise.
        theorem: its name.
        holds: whether the theorem is about this very pair, or about one nearly like it.
    """

    value: Float[Array, "..."]
    theorem: str
    holds: bool


class Gap(NamedTuple):
    """Why leaks of one mechanism of a pair can't be counted without following every user, and what is nearest to it."""

    what: str
    hint: str


# What each slot that a pair may leave out is needed for, as messages say it.
PURPOSES = {
    "shared_quantile": "what users share",
    "leaks": "a distribution of the leaked count",
    "count_release": "`simulate_counts`",
    "user_release": "`simulate_users`",
    "critical_noise": "a critical noise",
}


class AbstractPair(abc.ABC):
    r"""Everything that is known of a leakage rule for a mechanism: one class per pair, found by both types.

    A pair is registered by being defined, anywhere:

        class MyPair(pj.leakage.AbstractPair, mechanism=MyMechanism, leakage=MyRule):
            def split(self, mechanism, leakage, population, noise):
                return pj.leakage.Split(leaked=..., spared=...)

    `split` is all that the mean field, and so `tune` and `tune_schedule`, need. Each further method makes more of
    perfjax work for the pair, and what one leaves out raises a `ValueError` of one line where it is needed:

    | methods | what they give |
    | --- | --- |
    | `split` | `leak_probability`, `mean_field`, `tune`, `tune_schedule`, `sweep` over them |
    | `leaks`, `shared_quantile` or `shared_noise` | `population_law`, `solver="law"`, `tune_policy` |
    | `leaks`, `shared_quantile` (None where `shared_noise` lists all values) | `fit` |
    | `count_release` | `simulate_counts`, `solver="counts"` |
    | `user_release` | `simulate_users` |
    | `critical_noise` | the mark in `plots.plot_optimum` |

    A pair holds no numbers of its own: all methods get the mechanism and the rule, and are traced by JAX. Unless said
    otherwise arguments are scalars: `population` is n, `noise` the mechanism's noise x. Where everybody is leaked for
    sure (`exposed`), callers put in harmless values of both and take the limit for the result; with infinitely many
    users, a large finite number of them. `split`, `shared_noise` and `leaks` need not know these limits.

    A subclass of a mechanism or of a rule has the pair of its base unless it has one of its own; of several that fit,
    the one nearest to the mechanism's type counts, then to the rule's. A pair may inherit from another one, to share
    some of its methods: `class MyPair(pj.leakage.pairs.GaussianMeanLikelihoodRatio, mechanism=..., leakage=...)`.

    Attributes:
        independent: whether users are leaked independently of each other, given the noise that they share. The leaked
            count is then a binomial; otherwise it is a rounded normal of mean n `leaked` and variance n `spread`, and
            enumerated for one and two users.

    Raises:
        TypeError: where a class with `mechanism` and `leakage` leaves out `split`, or where the two have a pair already
            that is another class (one of the same name in the same module takes its place).
    """

    independent: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        *,
        mechanism: type[AbstractMechanism] | None = None,
        leakage: type[AbstractLeakage] | None = None,
        **options: Any,
    ):
        super().__init_subclass__(**options)
        if mechanism is None and leakage is None:  # one to inherit from
            return
        mechanism = _subclass(cls, mechanism, "mechanism", AbstractMechanism)
        leakage = _subclass(cls, leakage, "leakage", AbstractLeakage)
        if getattr(cls.split, "__isabstractmethod__", False):
            raise TypeError(f"`{cls.__name__}` must define `split`: no pair is without it.")
        there = _PAIRS.get((mechanism, leakage), cls)
        if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            names = f"({mechanism.__name__}, {leakage.__name__})"
            raise TypeError(f"`{cls.__name__}` is of the pair {names}, which {there.__module__} defines already.")
        if any(issubclass(mechanism, kind) and issubclass(leakage, rule) for kind, rule in _PAIRS):
            jax.clear_caches()  # programs that were compiled with the pair which was the nearest so far
        _PAIRS[mechanism, leakage] = cls

    @abc.abstractmethod
    def split(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        population: Float[Array, ""],
        noise: Float[Array, ""],
    ) -> Split:
        """P(leaked) and P(spared) for a user of one release, over all that is random in it."""

    def exposed(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        population: Float[Array, ""],
        noise: Float[Array, ""],
    ) -> Bool[Array, ""]:
        """Whether everybody is leaked for sure: where there is no noise, unless a pair says otherwise."""
        return noise == mechanism.no_privacy

    def released_noise(
        self, mechanism: AbstractMechanism, leakage: AbstractLeakage, noise: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """The noise of what is published, where it is not the mechanism's own since a round publishes more."""
        return noise

    def shared_quantile(
        self, mechanism: AbstractMechanism, leakage: AbstractLeakage, score: np.ndarray
    ) -> np.ndarray | None:
        """The shared noise at normal scores, F^-1(Phi(score)); None where it has finitely many values.

        What all users of a release share, as its noise, correlates their leaks. It is one number: where it is
        continuous, its law depends neither on the population nor on the noise x, as that of noise over x. Where it has
        finitely many values, or none, `shared_noise` lists them.

        Args:
            score: of shape [nodes], rising.

        Returns:
            Of shape [nodes], rising.
        """
        raise unsupported("shared_quantile", mechanism, leakage)

    def shared_noise(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        population: Float[Array, ""],
        noise: Float[Array, ""],
    ) -> tuple[Float[Array, " shared"], Float[Array, " shared"]]:
        """Nodes and weights for expectations over the shared noise.

        The trapezoid rule in its normal score (32 nodes, 5.4 standard deviations to both sides) unless a pair knows a
        better one. That is as good as the leak probability is smooth in the score; a step needs nodes of its own.
        """
        node = self.shared_quantile(mechanism, leakage, SCORES)
        if node is None:
            raise unsupported("shared_quantile", mechanism, leakage)
        return jnp.asarray(node, noise.dtype), jnp.asarray(SCORE_WEIGHTS, noise.dtype)

    def leaks(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        population: Float[Array, ""],
        noise: Float[Array, ""],
        shared: Float[Array, ""],
    ) -> LeakDistribution:
        """The distribution of the leaked count, given one value of the shared noise."""
        raise unsupported("leaks", mechanism, leakage)

    def count_gap(self, mechanism: AbstractMechanism, leakage: AbstractLeakage) -> Gap | None:
        """Why leaks of this very mechanism can't be counted without following users; None where they can."""
        return None

    def count_release(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        population: Float[Array, ""],
        noise: Float[Array, ""],
        words: UInt32[Array, " 4"],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """One release sampled at the count level.

        Unlike `split` and `leaks` it gets every population and noise as they are, limits included.

        Args:
            words: independent random 32-bit words, of which all randomness is to be made: a uniform number by
                `perfjax.binomial.uniform_from_bits`, a binomial by `binomial_from_bits`, the leaked count given the
                shared noise by `perfjax.leakage.leaked_count`.

        Returns:
            The leaked count, a whole number in 0..n, with the derivative of its expectation where it moves in steps;
            and the realised error in the mechanism's `error_unit`, infinite where nobody is there to ask.
        """
        raise unsupported("count_release", mechanism, leakage)

    def record_size(self, mechanism: AbstractMechanism) -> int:
        """How many numbers a user's record has, by which `simulate_users` chooses how many users it draws at a time."""
        return 1

    def user_release(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        users: Int[Array, ""],
        noise: Float[Array, ""],
        size: int,
        keys: Keys,
    ) -> UserRelease:
        """One release sampled record by record: the reference for everything above.

        Like `count_release` this one gets limits too. Users come in blocks of `size`, the last one filled up; block b
        draws from `fold_in(key, b)` alone, so that a block drawn a second time is the same. `leakage.pairs.blocks` has
        the tools.

        Args:
            users: n.
            size: of a block, even.
            keys: one per use; see `Keys`.

        Returns:
            The realised error, and tests of who of a block is leaked: each a function of the number of a block, with
            the first block that it is for and the one after the last.
        """
        raise unsupported("user_release", mechanism, leakage)

    def critical_noise(
        self,
        mechanism: AbstractMechanism,
        leakage: AbstractLeakage,
        *,
        leave: Float[Array, "..."],
        recruit: Float[Array, "..."],
        population: Float[Array, "..."],
    ) -> CriticalNoise | None:
        """The critical noise of a theorem, for spared recruiters without background; None where no theorem has one.

        Args:
            leave: q, of `Participation.net`.
            recruit: r, likewise.
            population: n.
        """
        return None


class AbstractIndependentPair(AbstractPair):
    """A pair whose users share nothing, and are leaked independently of each other: `split` says it all."""

    independent: ClassVar[bool] = True

    def shared_quantile(self, mechanism, leakage, score):
        return None

    def shared_noise(self, mechanism, leakage, population, noise):
        return jnp.zeros(1, noise.dtype), jnp.ones(1, noise.dtype)

    def leaks(self, mechanism, leakage, population, noise, shared):
        leaked, spared = self.split(mechanism, leakage, population, noise)
        return LeakDistribution(leaked, spared, leaked * spared, leaked * leaked)


SCORES, SCORE_WEIGHTS = score_rule(5.4, 32)

_PAIRS: dict[tuple[type, type], type[AbstractPair]] = {}


def _subclass(pair: type, kind: type[_T] | None, name: str, base: type[_T]) -> type[_T]:
    """`kind`, checked to be a class of `base`."""
    if not isinstance(kind, type) or not issubclass(kind, base):
        raise TypeError(f"`{pair.__name__}` must have a class of {base.__name__} for `{name}`, but has {kind!r}.")
    return kind


def pair_of(mechanism: AbstractMechanism, leakage: AbstractLeakage, *needed: str) -> AbstractPair:
    """The pair of a mechanism and a rule, by their types or the nearest bases of these.

    Args:
        mechanism: what releases.
        leakage: what counts as leaked.
        *needed: names of methods of `AbstractPair` that the pair must know.

    Raises:
        ValueError: if there is none, or if it leaves out a method that is needed; the pairs that there are are named.
    """
    for kind in type(mechanism).__mro__:
        for rule in type(leakage).__mro__:
            if (kind, rule) in _PAIRS:
                pair = _PAIRS[kind, rule]
                for slot in needed:
                    if not _knows(pair, slot):
                        raise unsupported(slot, mechanism, leakage)
                return pair()
    raise unsupported("split", mechanism, leakage)


def unsupported(slot: str, mechanism: AbstractMechanism, leakage: AbstractLeakage) -> ValueError:
    """The error that names the pairs which know what this one leaves out, to be raised by the caller."""
    names = (f"({m.__name__}, {rule.__name__})" for (m, rule), pair in _PAIRS.items() if _knows(pair, slot))
    known = ", ".join(sorted(names))
    given = f"({type(mechanism).__name__}, {type(leakage).__name__})"
    if slot == "split" and given in known:
        given += ", of which a class was defined again: define their pair again"
    requirement = f"be one of the pairs {known} for {PURPOSES.get(slot, 'a leak probability')}"
    return ValueError(f"Arguments `mechanism`, `leakage` must {requirement}, but are {given}.")


def _knows(pair: type[AbstractPair], slot: str) -> bool:
    return getattr(pair, slot) is not getattr(AbstractPair, slot)

"""Privacy accounting: Gaussian DP (μ), zCDP (ρ), Rényi DP (D_α), pure DP and (ε, δ), all ways that hold.

Every function is elementwise (or reduces the axis it names), differentiable, and works under jit and vmap. Where it
takes two numbers or more it takes them by name alone: `gaussian_epsilon(mu=0.5, delta=1e-5)`.
A release is described by one of

| notion | parameter | several releases | k records at once |
| --- | --- | --- | --- |
| Gaussian DP | μ = Δ/s: `mu_from_noise` | μ² adds: `compose_mu` | k μ |
| zCDP | ρ = μ²/2: `rho_from_mu` | ρ adds: `compose_rho` | k² ρ |
| Rényi DP | D_α = αρ: `renyi_from_rho`, `pure_renyi` | D_α adds at equal α: `compose_renyi` | by way of ρ |
| pure DP | ε₀, which is (ε₀, 0): `pure_rho`, `pure_renyi` | `pure_delta`; ε₀ adds: `compose_basic` | k ε₀ |
| (ε, δ) | `gaussian_*` exactly; `zcdp_*`, `renyi_*` as bounds | both add: `compose_basic` | - |

**Adjacency.** "replace-one": one record takes another value, the number of records is public. "add-remove":
one record comes or goes. It enters through the sensitivity alone (`clipped_sensitivity`), and every parameter
computed from that sensitivity has its adjacency. Replacing a record is removing one and adding one, so a
guarantee for add-remove gives one for replace-one, that of k = 2 records; there is no way back.

**L releases under one budget.** `kappa` is the noise that each accountant asks for, `classic_validity` and
`effective_epsilon` say what that noise really buys.

**Rounding.** What holds for zCDP and pure DP as a bound (`zcdp_*`, `pure_delta`) is rounded to the safe side: ε and δ
are never below the exact bound, ρ never above it.

**Edges.** b stands for μ, ρ or ε₀, the first argument of each function in these docs; rules are read from the top, the
first that fits holds.

| `*_delta` of b and ε | | `*_epsilon` of b and δ | | `*_mu`, `*_rho` of ε and δ | |
| --- | --- | --- | --- | --- | --- |
| b = 0 | 0 | b = 0 | 0 | ε = ∞ | ∞ |
| b = ∞ | 1 | δ = 1 | 0; classic: ρ | δ = 1 | ∞; classic: ε |
| ε = ∞ | 0 | b = ∞ or δ = 0 | ∞ | δ = 0 | 0 |
| ε = 0 | below 1 | δ ≥ `*_delta(b, 0)` | 0 | ε = 0 | positive; classic: 0 |

A gradient is never NaN. It is the one-sided derivative at the ends of a range, and 0 where the value is
infinite or the derivative is: at ρ = 0 in `mu_from_rho` and the classic `zcdp_epsilon`, at δ = 0 in
the inverses.
"""

from perfjax.accounting.gaussian import (
    compose_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    mu_from_rho,
    rho_from_mu,
)
from perfjax.accounting.noise import clipped_sensitivity, mu_from_noise, noise_from_mu
from perfjax.accounting.pure import compose_basic, pure_delta, pure_epsilon, pure_renyi, pure_rho
from perfjax.accounting.renyi import (
    compose_renyi,
    renyi_delta,
    renyi_divergence,
    renyi_epsilon,
    renyi_from_rho,
)
from perfjax.accounting.transcript import (
    ACCOUNTANTS,
    ClassicValidity,
    best_renyi_order,
    classic_delta,
    classic_epsilon_limit,
    classic_validity,
    effective_epsilon,
    kappa,
)
from perfjax.accounting.zcdp import compose_rho, zcdp_delta, zcdp_epsilon, zcdp_rho

__all__ = [
    "ACCOUNTANTS",
    "ClassicValidity",
    "best_renyi_order",
    "classic_delta",
    "classic_epsilon_limit",
    "classic_validity",
    "clipped_sensitivity",
    "compose_basic",
    "compose_mu",
    "compose_renyi",
    "compose_rho",
    "effective_epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "kappa",
    "mu_from_noise",
    "mu_from_rho",
    "noise_from_mu",
    "pure_delta",
    "pure_epsilon",
    "pure_renyi",
    "pure_rho",
    "renyi_delta",
    "renyi_divergence",
    "renyi_epsilon",
    "renyi_from_rho",
    "rho_from_mu",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]

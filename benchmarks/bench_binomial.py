"""How much cheaper is a binomial count by quantile than `jax.random.binomial`, on one core?

Run as `python benchmarks/bench_binomial.py`; prints one JSON object. Times are nanoseconds per draw, the least of many
repeats, compilation apart. Every row of a group draws the same counts: n in 0..2000, p in 0..1, small ones more often.
"""

import json
import os
import platform
import time

# One core: a time per draw that does not depend on how busy the others are. Before JAX reads them.
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

from perfjax.binomial import binomial_from_bits, binomial_quantile

jax.config.update("jax_enable_x64", True)

DRAWS = 100_000
BLOCK = 10_000  # a batch whose arrays stay in the cache


def nanoseconds(function, *args, draws: int, repeats: int) -> dict[str, float]:
    """Time per draw of a compiled function, and the seconds of its first call."""
    begin = time.perf_counter()
    jax.block_until_ready(function(*args))
    first = time.perf_counter() - begin
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(*args))
        best = min(best, time.perf_counter() - begin)
    return {"ns_per_draw": round(best / draws * 1e9, 2), "first_call_s": round(first, 2)}


def group(dtype, draws: int) -> dict[str, dict[str, float]]:
    """All ways to draw the same counts."""
    random = np.random.default_rng(0)
    n = jnp.asarray(random.integers(0, 2001, draws), dtype)
    p = jnp.asarray(random.random(draws) ** 3, dtype)
    key = jax.random.key(0)
    bits = jax.random.bits(key, (draws,), "uint32")
    u = jnp.asarray(random.random(draws), dtype)

    def loss(n, p, bits):
        return jnp.sum(binomial_from_bits(bits, n, p) ** 2)

    def with_bits(key, n, p):
        return binomial_from_bits(jax.random.bits(key, n.shape, "uint32"), n, p)

    whole, chance = np.asarray(n, np.int64), np.asarray(p)
    rows = {
        "binomial_quantile": (jax.jit(binomial_quantile), (u, n, p), 200),
        "binomial_from_bits": (jax.jit(binomial_from_bits), (bits, n, p), 200),
        "binomial_from_bits, drawing the bits": (jax.jit(with_bits), (key, n, p), 200),
        "value and gradient": (jax.jit(jax.value_and_grad(loss, argnums=(0, 1))), (n, p, bits), 200),
        "jax.random.binomial": (jax.jit(lambda k, n, p: jax.random.binomial(k, n, p, n.shape, dtype)), (key, n, p), 7),
        "numpy binomial": (lambda: random.binomial(whole, chance), (), 20),
    }
    return {name: nanoseconds(f, *args, draws=draws, repeats=repeats) for name, (f, args, repeats) in rows.items()}


def main() -> None:
    """Time, compare, print."""
    report = {"device": f"{jax.devices()[0].platform}, {platform.processor() or platform.machine()}, one core"}
    report |= {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}
    for dtype in ("float32", "float64"):
        for draws in (BLOCK, DRAWS):
            rows = group(jnp.dtype(dtype), draws)
            ours = rows["binomial_from_bits, drawing the bits"]["ns_per_draw"]
            ratio = {
                name: round(rows[name]["ns_per_draw"] / ours, 1) for name in ("jax.random.binomial", "numpy binomial")
            }
            report[f"{dtype}, {draws} draws"] = {"rows": rows, "times slower than ours with its bits": ratio}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()

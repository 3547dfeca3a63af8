"""Fisher geometry of one transcript: `perfjax.reconstruction` against direct linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import perfjax.reconstruction as rc

RNG = np.random.default_rng(0)
L, P, Q = 6, 2, 3


def problem(rank=Q, rng=RNG):
    """T and H, H of the given rank."""
    return rng.normal(size=(L, P)), rng.normal(size=(L, rank)) @ rng.normal(size=(rank, Q))


def schur(t, h):
    """A - B S^+ B' by NumPy."""
    return t.T @ t - t.T @ h @ np.linalg.pinv(h.T @ h, rcond=1e-10) @ h.T @ t


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_projector_and_schur_complement_agree_also_where_the_nuisance_block_is_singular(rank):
    t, h = problem(rank)
    both = np.concatenate([t, h], 1)
    found = rc.profiled_information(t, h)
    np.testing.assert_allclose(found, schur(t, h), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(rc.schur_information(both.T @ both, P), found, rtol=1e-10, atol=1e-10)


def test_profiled_information_is_the_least_over_all_coefficients():
    t, h = problem(2)
    least = np.asarray(rc.profiled_information(t, h))
    for _ in range(50):
        k = np.linalg.pinv(h) @ t + RNG.normal(size=(Q, P))
        assert np.linalg.eigvalsh((t - h @ k).T @ (t - h @ k) - least).min() > -1e-10


def test_invariances():
    t, h = problem()
    base = np.asarray(rc.profiled_information(t, h))
    mixed = h @ RNG.normal(size=(Q, Q))
    np.testing.assert_allclose(rc.profiled_information(t, mixed), base, rtol=1e-9)
    change = RNG.normal(size=(P, P))  # theta = change @ theta'
    np.testing.assert_allclose(rc.profiled_information(t @ change, h), change.T @ base @ change, rtol=1e-9)
    np.testing.assert_allclose(rc.profiled_information(t / 3, h / 3), base / 9, rtol=1e-12)
    assert np.linalg.eigvalsh(t.T @ t - base).min() > -1e-12
    fewer = rc.profiled_information(t[:-1], h[:-1])
    assert np.linalg.eigvalsh(base - fewer).min() > -1e-12
    known = rc.profiled_information(t, h[:, :-1])
    assert np.linalg.eigvalsh(known - base).min() > -1e-12


def test_any_factor_of_the_covariance_gives_the_same_information():
    root = RNG.normal(size=(L, L))
    covariance = root @ root.T + np.eye(L)
    jacobian = np.concatenate(problem(), 1)
    values, vectors = np.linalg.eigh(covariance)
    symmetric = vectors / np.sqrt(values) @ vectors.T @ jacobian
    found = rc.whitened(jacobian, covariance)
    np.testing.assert_allclose(found.T @ found, symmetric.T @ symmetric, rtol=1e-9)
    np.testing.assert_allclose(rc.whitened(jacobian, 4.0), jacobian / 2)
    np.testing.assert_allclose(rc.whitened(jacobian, np.full(L, 4.0)), jacobian / 2)
    np.testing.assert_allclose(rc.whitened(jacobian, 4 * np.eye(L)), jacobian / 2)


@pytest.mark.parametrize("inside", [True, False])
def test_one_row_and_its_rank(inside):
    t, h = problem(2)
    g = RNG.normal(size=P)
    e = h[0] - 2 * h[1] if inside else RNG.normal(size=Q)
    gain = np.asarray(rc.information_gain(t, h, new_target=g, new_nuisance=e))
    after = rc.profiled_information(np.vstack([t, g]), np.vstack([h, e]))
    np.testing.assert_allclose(after - rc.profiled_information(t, h), gain, atol=1e-10)
    s_plus = np.linalg.pinv(h.T @ h, rcond=1e-10)
    u = g - t.T @ h @ s_plus @ e
    expected = np.outer(u, u) / (1 + e @ s_plus @ e) if inside else np.zeros((P, P))
    np.testing.assert_allclose(gain, expected, atol=1e-10)


def test_two_rows_that_each_add_nothing_together_add_something():
    """A greedy choice of one release at a time can stall at zero."""
    nothing = {"target": np.zeros((1, 1)), "nuisance": np.zeros((1, 1))}
    rows = {"new_target": np.array([[1.0], [1.0 + np.sqrt(48.0)]]), "new_nuisance": np.ones((2, 1))}
    for k in range(2):
        one = {name: row[k] for name, row in rows.items()}
        np.testing.assert_allclose(rc.information_gain(**nothing, **one), 0, atol=1e-12)
    np.testing.assert_allclose(rc.information_gain(**nothing, **rows), 24, rtol=1e-12)


@pytest.mark.slow
def test_a_row_outside_the_span_is_the_limit_of_an_invertible_block():
    t, h = problem(2)
    g, e = RNG.normal(size=P), RNG.normal(size=Q)
    for ridge, most in ((1e-2, 0.5), (1e-6, 1e-4)):
        more_t, more_h = np.vstack([t, np.zeros((Q, P))]), np.vstack([h, np.sqrt(ridge) * np.eye(Q)])
        assert np.max(np.abs(rc.information_gain(more_t, more_h, new_target=g, new_nuisance=e))) < most


def test_reasons_and_infinite_bounds():
    t, h = problem()
    inside = h @ RNG.normal(size=(Q, P))
    for target, reason in (
        (t, rc.Reason.IDENTIFIED),
        (np.zeros_like(t), rc.Reason.NOT_RELEASED),
        (inside, rc.Reason.IN_NUISANCE_SPAN),
        (np.stack([t[:, 0], inside[:, 0]], 1), rc.Reason.IN_NUISANCE_SPAN),
        (np.stack([t[:, 0], t[:, 0] + inside[:, 1]], 1), rc.Reason.IN_NUISANCE_SPAN),
    ):
        assert rc.target_reason(target, h) == reason
        bound = rc.target_bound(target, h)
        assert np.isfinite(bound) == (reason == rc.Reason.IDENTIFIED)
    np.testing.assert_allclose(rc.target_bound(t, h), np.trace(np.linalg.inv(schur(t, h))), rtol=1e-10)
    assert all(code.meaning.endswith(".") for code in rc.Reason)


@pytest.mark.slow
def test_infinite_bounds_have_a_zero_gradient():
    t, h = problem()
    slope = jax.jit(jax.grad(lambda x: rc.target_bound(x, h)))
    for target in (np.zeros_like(t), h @ RNG.normal(size=(Q, P)), np.stack([t[:, 0], h[:, 0]], 1)):
        assert np.all(slope(target) == 0)
    assert np.all(np.isfinite(slope(t)))
    assert np.any(slope(t) != 0)


@pytest.mark.slow
def test_what_can_be_estimated_of_a_target_that_is_not_identified():
    t, h = problem()
    target = np.stack([t[:, 0], t[:, 0]], 1)  # only the sum shows
    assert np.isinf(rc.contrast_bound(target, h, [1.0, 0.0]))
    expected = rc.target_bound(t[:, :1], h)
    np.testing.assert_allclose(rc.contrast_bound(target, h, [1.0, 1.0]), expected, rtol=1e-10)


def test_nearly_spanned_targets_keep_their_digits():
    """A residual of 1e-8 of the target: normal equations would have nothing left."""
    h = np.array([[1.0], [1.0], [1.0]])
    t = np.array([[1.0], [1.0], [1.0 + 3e-8]])
    excess = t[2, 0] - 1
    np.testing.assert_allclose(rc.profiled_information(t, h), [[excess**2 * 2 / 3]], rtol=1e-7)
    assert rc.profiled_information(h * (1 + 1e-15), h) == 0


def test_autodiff_gives_the_geometry_of_any_release_family():
    """q_l = g_l(sum of phi_l over members): the gradient is g_l'(s_l) phi_l'(x_k) for members, else 0."""
    members = jnp.asarray([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]], float)
    power = jnp.asarray([1.0, 2.0, 3.0, 1.0, 2.0])

    def release(x):
        return jnp.tanh(jnp.sum(members * x ** power[:, None], 1))

    x = np.array([0.3, 0.7, 0.4, 0.9])
    s = np.sum(np.asarray(members) * x ** np.asarray(power)[:, None], 1)
    expected = (1 - np.tanh(s) ** 2)[:, None] * np.asarray(members)
    expected = expected * np.asarray(power)[:, None] * x ** (np.asarray(power)[:, None] - 1)
    found = rc.transcript_jacobian(release, x, covariance=0.25)
    np.testing.assert_allclose(found, 2 * expected, rtol=1e-12)


@pytest.mark.slow
def test_vector_records_with_one_feature_map_multiply_the_geometry():
    """Means of p-dimensional records: the information is that of one coordinate, once per coordinate."""
    weights = RNG.normal(size=(5, 3))
    scalar = rc.profiled_information(*rc.split_columns(weights, 0))
    jacobian = rc.transcript_jacobian(lambda x: (weights @ x).ravel(), RNG.normal(size=(3, 2)), covariance=1.0)
    found = rc.profiled_information(*rc.split_columns(jacobian, [0, 1]))
    np.testing.assert_allclose(found, np.kron(scalar, np.eye(2)), atol=1e-12)


@pytest.mark.slow
def test_bounds_are_differentiable_also_beside_a_singular_nuisance_block():
    t, h = (jnp.asarray(x) for x in problem(2))

    def bound(a, b):
        return rc.target_bound(t + jnp.outer(jnp.log(a) * jnp.arange(float(L)), jnp.ones(P)), h * b)

    found = jax.grad(bound)(1.3, 0.7)
    step = 1e-6
    difference = (bound(1.3 + step, 0.7) - bound(1.3 - step, 0.7)) / (2 * step)
    np.testing.assert_allclose(found, difference, rtol=1e-6)
    second = jax.hessian(lambda a: bound(a, 0.7))(1.3)
    slope = jax.grad(lambda a: bound(a, 0.7))
    np.testing.assert_allclose(second, (slope(1.3 + step) - slope(1.3 - step)) / (2 * step), rtol=1e-5)


@pytest.mark.slow
def test_batches_are_as_if_alone():
    pairs = [problem(2) for _ in range(3)]
    t, h = (np.stack(x) for x in zip(*pairs, strict=True))
    found = rc.target_bound(t, h)
    np.testing.assert_allclose(found, [rc.target_bound(*pair) for pair in pairs], rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(rc.target_bound))(t, h), found, rtol=1e-12)
    assert rc.target_reason(t, h).shape == (3,)


@pytest.mark.slow
def test_float32_follows_float64():
    t, h = problem()
    found = rc.target_bound(t.astype(np.float32), h.astype(np.float32))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, rc.target_bound(t, h), rtol=1e-4)
    assert rc.target_reason(h[:, :1].astype(np.float32) * np.float32(3), h.astype(np.float32)) == 3


# Labels


def test_labels_show_only_where_no_exchange_leaves_every_release_as_it_is():
    probes = jax.random.uniform(jax.random.key(0), (3, 4), minval=-1.0)
    power = jnp.arange(1.0, 6.0)[:, None]

    def moments(x):
        return jnp.mean(x[None, :] ** power, 1)

    np.testing.assert_array_equal(rc.label_twins(moments, probes, 1), [True, False, True, True])

    def hybrid(x):
        return jnp.append(moments(x), jnp.mean(x[1:]))  # one mean without record 0

    np.testing.assert_array_equal(rc.label_twins(hybrid, probes, 0), [False] * 4)
    np.testing.assert_array_equal(rc.label_twins(hybrid, probes, 1), [False, False, True, True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rc.whitened(np.ones((2, 1)), [1.0, 0.0]),
            "Argument `covariance` must lie in (0, inf], but is 0.",
        ),
        (
            lambda: rc.whitened(np.ones((2, 1)), [[1.0, 2.0], [2.0, 1.0]]),
            "Argument `covariance` must be positive definite, but is [[1. 2.] [2. 1.]].",
        ),
        (
            lambda: rc.whitened(np.ones((2, 1)), np.ones(3)),
            "Argument `covariance` must be one variance, 2 of them or a square matrix, but is of shape (3,).",
        ),
        (lambda: rc.split_columns(np.ones((2, 2)), 2), "Argument `target` must name columns from 0 to 1, but is 2."),
        (
            lambda: rc.label_twins(lambda x: x, np.ones(3), 0),
            "Argument `probes` must have the shape [sets, records], but is of shape (3,).",
        ),
        (
            lambda: rc.label_twins(lambda x: x, np.ones((1, 3)), 3),
            "Argument `target` must name a record from 0 to 2, but is 3.",
        ),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(ValueError, match="Argument") as found:
        call()
    assert str(found.value) == message

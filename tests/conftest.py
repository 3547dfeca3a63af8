"""Tests run in float64 with strict promotion; the main results run again in float32 by casting inputs."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

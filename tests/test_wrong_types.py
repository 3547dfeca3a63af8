"""What is of the wrong type is refused in one line, without the checks of types that the other tests run under."""

import json
import subprocess
import sys

PROGRAM = """
import json, jax, perfjax as pj
gaussian, response = pj.preset("mean-estimation"), pj.preset("randomized-response")
key = jax.random.key(0)
cal = pj.calibration
counts = pj.CumulativeError(solver="counts", trials=2)
found = {}
for call in json.loads(input()):
    try:
        found[call] = str(eval(call))
    except Exception as error:
        found[call] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
SCENARIO = "Argument `scenario` must be a Scenario, but is of type str."
CLIPPING = "Argument `clip_estimate` must be True or False, but is"
TYPED = "Argument `key` must be a typed key, as `jax.random.key(0)` makes it, but is 0."
FREE = "Argument `free` must name one parameter or more, each once, but is"
PRIOR = 'Argument `prior` must be a mapping such as {"leave": Beta(2, 16)}, but is of type'
REFUSED = {
    'pj.mean_field("mean-estimation")': SCENARIO,
    'pj.population_law("mean-estimation")': SCENARIO,
    'pj.simulate_counts("mean-estimation", key=key, trials=1)': SCENARIO,
    'pj.simulate_users("mean-estimation", key=key, trials=1)': SCENARIO,
    'pj.tune("mean-estimation")': SCENARIO,
    'pj.CumulativeBound()("mean-estimation")': SCENARIO,
    "pj.sensitivities(gaussian)": "Argument `optimum` must be an Optimum, but is of type Scenario.",
    'pj.RandomizedResponse(1.0, clip_estimate="false")': f'{CLIPPING} "false".',
    "pj.RandomizedResponse(1.0, clip_estimate=1)": f"{CLIPPING} 1.",
    "pj.tune(gaussian, bounds=3.0)": "Argument `bounds` must be two numbers, (least, greatest), but is 3.0.",
    "pj.tune(gaussian, pj.CumulativeError)": (
        "Argument `objective` must be an Objective, but is the class CumulativeError."
    ),
    'pj.CumulativeError(collapsed="penalty", penalty=[1.0, 2.0])': (
        "Argument `penalty` must be one number, but is [1. 2.]."
    ),
    "counts(gaussian, key=0)": TYPED,
    'pj.population_law(gaussian, rtol="fine")': 'Argument `rtol` must be above 0, but is "fine".',
    "cal.Series(None)": "Argument `population` must have at least 3 rounds, but is None.",
    "cal.Series([3, 4, 5], labels=5)": "Argument `labels` must have one for each of 3 rounds, but is 5.",
    'cal.Series([3, 4, 5], labels="abc")': 'Argument `labels` must have one for each of 3 rounds, but is "abc".',
    "pj.fit([3, 4, 5], gaussian, free=3)": f"{FREE} 3.",
    "pj.fit([3, 4, 5], gaussian, prior=[cal.Beta(1, 2)])": f"{PRIOR} list.",
    "pj.fit([3, 4, 5], gaussian, prior=cal.Beta(1, 2))": f"{PRIOR} Beta.",
    "pj.fit([3, 4, 5], 3)": "Argument `scenario` must be a Scenario, but is of type int.",
    'pj._check.as_level("0.9")': 'Argument `level` must be a number in (0, 1), but is "0.9".',
    'cal.design_experiment(response, rounds=1, key=key, free="leave", bounds=(1.0, 2.0), information="x")': (
        'Argument `information` must be a number or an array of numbers, but is "x".'
    ),
}


def test_wrong_types_are_one_clear_line():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(list(REFUSED)), capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {call: f"ValueError: {message}" for call, message in REFUSED.items()}

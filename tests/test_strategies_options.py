"""Names, options and their values: what is unknown or out of range is refused by name."""

from typing import Any

import numpy as np
import pytest
from fakes import make

import strategies
from strategies.core.options import Staircase
from strategies.parts.amplification import Amplification
from strategies.parts.server_optimizers import Adam


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("fedsvg", f"unknown strategy 'fedsvg'; known: {', '.join(strategies.STRATEGIES)}"),
        ("mimic lr=1", "mimic has no option 'lr'; known: .*learning_rate"),
        ("fedavg clients_pr_round=3", "fedavg has no option .*did you mean clients_per_round"),
        ("fedavg clients_per_round=-1", "clients-per-round is -1; it must"),
        ("fedavg local_steps=0", "local-steps is 0; it must"),
        ("fedavg local_steps=2.5", "local-steps is 2.5; it must be a whole number"),
        ("fedavg local_steps='10'", "local-steps is '10'; it must be a whole number"),
        ("fedavg local_steps=True", "local-steps is True; it must be a whole number"),
        ("fedavg learning_rate=0.0", "learning-rate is 0.0; it must"),
        ("fedavg learning_rate=float('nan')", "learning-rate is nan; it must"),
        ("fedavg learning_rate=None", "learning-rate is None; it must be a number"),
        ("fedavg departure='keep'", "departure is 'keep'; choose"),
        ("fedavg departure=1", "departure is 1; it must be text"),
        *((f"fedavg max_update_norm={v!r}", f"max-update-norm is '{v}'; it must") for v in ("0", "inf", "x")),
        ("scheme-c reboot_peak=0.5", "reboot-peak is 0.5; it must"),
        ("fedlaavg memory='both'", "memory is 'both'; choose"),
        (
            "fedlaavg memory='client', local_epochs=1",
            "memory is 'client' with .*; set normalize=false",
        ),
        ("mifa table_memory=-1.0", "table-memory is -1.0; it must"),
        ("mimic global_decay=1.5", "global-decay is 1.5; it must"),
        ("efl sparsity=1.5", "sparsity is 1.5; it must"),
        ("fedavg lr_schedule='stairs'", "unknown lr-schedule 'stairs'; .*did you mean staircase"),
        ("fedavg lr_schedule='staircase:on=1'", "lr-schedule staircase has no option 'on'; known: restart"),
        ("fedavg lr_schedule='geometric:factor=2'", "lr-schedule geometric: factor is 2.0; it must be above"),
        ("fedavg lr_schedule=0.1", "lr-schedule is 0.1; give `make` a spec or a schedule"),
        ("fedavg server_opt='adan'", "unknown server-opt 'adan'; .*did you mean adam"),
        ("fedavg server_opt=3", "server-opt is 3; it must be text"),
        ("fedavg amplify='3'", "amplify '3' is not PERIOD,FACTOR"),
        ("fedavg amplify='0,2'", "amplify: the period is 0 rounds"),
        ("fedavg server_opt='momentum:beta1=-0.1'", "server-opt momentum: beta1 is -0.1"),
        ("fedavg initial_model='twonorm'", "unknown initial-model 'twonorm'; .*did you mean two-norm"),
        (
            "fedavg initial_model='two-norm:min-change=2'",
            "initial-model two-norm: min-change is 2.0; it must",
        ),
        ("fedavg initial_model='two-norm:W=1'", "initial-model two-norm has no option 'W'; known: V, R"),
        ("efl initial_model='two-norm'", "EFL takes no initial_model"),
        ("efl server_opt='adam'", "EFL takes no server_opt or amplify"),
        ("fedawe amplify='2,2'", "FedAWE takes no server_opt or amplify"),
        ("fedacg server_opt='sgd:rate=0.5'", "FedACG takes no server_opt or amplify"),
        ("feddyn outliers='clip'", "FedDyn: with outliers=clip, the server would take in other updates"),
        ("mimic outliers='clip', memory='client'", "MimiC.*: with outliers=clip"),
    ],
)
def test_errors_say_what_is_allowed(spec: str, says: str) -> None:
    name, _, options = spec.partition(" ")
    with pytest.raises(ValueError, match=f"^{says}"):
        make(name, **eval(f"dict({options})"))


def test_specs_and_numbers_of_numpy_are_taken() -> None:
    specs: dict[str, Any] = {"lr_schedule": "staircase:restart=false", "amplify": "3,2"}
    strategy = make("fedavg", server_opt="adam:rate=0.5", local_steps=np.int64(3), **specs)
    assert strategy.options.lr_schedule == Staircase(restart=False)
    assert strategy.options.local_steps == 3
    assert [type(layer) for layer in strategy.layers] == [Adam, Amplification]
    assert strategy.layers[0].rate == 0.5

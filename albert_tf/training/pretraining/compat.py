"""What `--compat` sets: the released training where it differs from ours."""

import dataclasses

# The released schedule, its clipping of each replica's gradient, its average
# of the replicas' average losses, its random first weights.
COMPAT = {
    "none": {},
    "google": {
        "schedule": "released",
        "clip_placement": "per_replica",
        "loss_normalization": "per_replica",
        "initial_weights": "released",
    },
}


def with_compat(config, compat: str):
    """Return a settings dataclass with the values that a compat mode sets."""
    fields = {field.name for field in dataclasses.fields(config)}
    values = {k: v for k, v in COMPAT[compat].items() if k in fields}
    return dataclasses.replace(config, **values)

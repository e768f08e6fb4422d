"""Evaluate on two hosts, which are servers that this program controls.

TensorFlow has a strategy for TPUs on other hosts, but none for their CPUs. A
local strategy is therefore configured with replicas and inputs on the servers.
Like a TPU strategy, it sends data sets, variables and steps to the servers.
"""

import json
import socket

import keras
import tensorflow as tf
import tiny
from tensorflow.python.distribute import mirrored_strategy

from albert_tf.model.albert import AlbertForPretraining
from albert_tf.training.evaluator import Evaluator
from albert_tf.training.objectives import PretrainingObjective


def start_servers(number):
    """Start gRPC servers, connect to them and return them."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    cluster = tf.train.ClusterSpec(
        {"worker": [f"localhost:{p}" for p in ports]}
    )
    servers = [
        tf.distribute.Server(cluster, job_name="worker", task_index=i)
        for i in range(number)
    ]
    tf.config.experimental_connect_to_cluster(cluster)
    return servers


def strategy_on_servers(number):
    """Return a strategy with one replica on each server."""
    mirrored_strategy._is_device_list_single_worker = lambda devices: True
    task = "/job:worker/replica:0/task:{}/device:CPU:0"
    devices = [task.format(i) for i in range(number)]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    strategy.extended._input_workers_devices = tuple((d, (d,)) for d in devices)
    return strategy


def echo(model, batch):
    return {"ids": batch["input_ids"]}


def figures(strategy):
    """Return the metrics of an evaluation, and the ids of its examples."""
    keras.utils.set_random_seed(3)
    evaluator = Evaluator(
        strategy,
        lambda: AlbertForPretraining(tiny.CONFIG),
        PretrainingObjective(),
        16,
    )
    metrics = evaluator.evaluate(tiny.eval_batches)
    ids = evaluator.predict(tiny.eval_batches, echo)["ids"].tolist()
    return {"metrics": metrics, "ids": ids}


if __name__ == "__main__":
    servers = start_servers(2)
    print(json.dumps(figures(tf.distribute.get_strategy())))
    print(json.dumps(figures(strategy_on_servers(2))))

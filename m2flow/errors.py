# SPDX-License-Identifier: Apache-2.0
"""Every error that m2flow raises on purpose, named by the boundary where it is found.

A message says what was given, what was expected and what to do about it. Catch ``M2flowError`` to catch them all.
"""


class M2flowError(Exception):
    """Base of all errors below: something a user can understand and mend."""


class ConfigError(M2flowError):
    """A configuration or a command line that cannot be run. Its message lists all mistakes, not only the first."""


class DataError(M2flowError):
    """A data set or a prompt that cannot be used."""


class ModelError(M2flowError):
    """A model, tokenizer or adapter that is missing, incomplete or of an unsupported kind."""


class EngineError(M2flowError):
    """A generation request that the engine cannot serve."""


class RewardError(M2flowError):
    """A reward function that raised, or that returned something which is no reward."""


class LearnerError(M2flowError):
    """A batch, loss or gradient that the learner refuses."""


class CheckpointError(M2flowError):
    """A checkpoint that is missing, damaged, or that belongs to another run."""


class FlowError(M2flowError):
    """A flow that is used in a way it does not allow: a role, a stream or a run in the wrong state."""


class TransportError(M2flowError):
    """An item that cannot be moved: not picklable, too large, freed already, or its owner is gone."""


class WeightsError(M2flowError):
    """Weights that did not arrive as they were sent, or that would overwrite some still in use."""


class SimulatorError(M2flowError):
    """A simulator that cannot run here, crashed, hung, or got what its interface does not allow."""

"""UANet: uncertainty-aware sequence labelling of single sentences (Ye et al., 2021, sections III-A, III-B and III-D).

Where paper and released code differ, this uses recurrent masks (paper), the argmax of the mean probability as the draft
(paper), the expected label embedding with detached probabilities (code), and centred relative positions (paper).
"""

from typing import ClassVar

from concord.models.taggers.base import TaggerConfig
from concord.models.taggers.two_stage import TwoStageTagger
from concord.models.taggers.two_stage_networks import TwoStageConfig


class UaNet(TwoStageTagger):
    """Drafts labels with a variational LSTM and refines uncertain ones with two-stream relative attention."""

    name: ClassVar[str] = "uanet"
    config_class: ClassVar[type[TaggerConfig]] = TwoStageConfig

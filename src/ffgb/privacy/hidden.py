"""A message whose answers come under masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from ffgb.core.questions import Sum
from ffgb.privacy.integers import with_share
from ffgb.privacy.reports import REPORT
from ffgb.protocol.codec import Expected, Form, Message
from ffgb.protocol.job import Job
from ffgb.protocol.masking import Masking
from ffgb.protocol.messages import Asked, read
from ffgb.protocol.sending import Sending


@final
@dataclass(frozen=True, eq=False)
class Hidden(Sending):
    """Another message, and how its answers are masked."""

    inner: Sending
    masking: Masking

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.inner.kind

    @property
    def before_training(self) -> bool:  # type: ignore[override]
        return self.inner.before_training

    @property
    def after_training(self) -> bool:  # type: ignore[override]
        return self.inner.after_training

    @property
    def answer(self) -> str:
        return self.inner.answer

    def message(self) -> Message:
        message = self.inner.message()
        return replace(message, values={**message.values, "masks": self.masking.value})

    @staticmethod
    def read(message: Message, job: Job | None) -> Sending:
        return read(message, job)

    @property
    def sums(self) -> Mapping[str, Sum]:
        return sums_of(self.inner)

    def expected(self, job: Job | None) -> Expected:
        forms = {name: Form(each.shape, each.dtype) for name, each in self.sums.items()}
        inner = self.inner.expected(job)
        return Expected(("masked", "stranger", "ready", *inner.kinds), inner.round, forms=forms)


def sums_of(sending: Sending) -> Mapping[str, Sum]:
    """How the answers to a message add up."""
    return with_share(sending.question.sums) if isinstance(sending, Asked) else REPORT

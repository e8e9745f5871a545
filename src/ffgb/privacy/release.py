"""What leaves a client in a private training: sums with its share of the noise, paid for before they leave.

The client decides by itself.  How far a row moves an answer follows from the question's own content, and is enforced by
clipping (core/private_question.py).  How much noise that takes follows from the price.  The price is taken from a
budget that the site keeps (privacy/ledger.py).  A question that was answered before costs nothing: the answer is the
same.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import CellBlocks, ResidualSums
from ffgb.core.survey import FileCounts
from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError, option
from ffgb.features.bins import Bins
from ffgb.privacy.identity import Identity
from ffgb.privacy.noise import LARGEST_DEVIATION, noise_of
from ffgb.protocol.codec import Message, encode
from ffgb.protocol.describe import describe
from ffgb.protocol.masking import Introduce, Prepare, Roll, Tie, Ties, Unmask
from ffgb.protocol.messages import Asked, Setup, Take
from ffgb.protocol.sending import Sending


def name_of(question: PrivateQuestion, rows: bytes, secret: bytes, among: bytes = b"") -> bytes:
    """By what an answer is known again: all that it depends on, the secret that its noise comes from among it.

    `among` says whose noise is in the total besides.  Totals of the same question over other clients have other noise:
    with the same, their difference would have that of one client alone.
    """
    recipe, arrays = describe(question)
    content = encode(Message("noise", values={"recipe": recipe}, tensors=arrays))
    parts = [hashlib.sha256(content).digest(), rows, hashlib.sha256(secret).digest(), hashlib.sha256(among).digest()]
    return hashlib.sha256(b"ffgb private answer" + b"".join(parts)).digest()


def digest_of_rows(points: Points) -> bytes:
    """A hash of a client's rows and targets."""
    digest = hashlib.sha256()
    for array in (points.x, points.y):
        whole = np.ascontiguousarray(array)
        digest.update(f"{whole.dtype}{whole.shape}".encode())
        digest.update(whole.tobytes())
    return digest.digest()


def check_question(question: PrivateQuestion, points: Points, answering: int, identity: Identity) -> None:
    """Raise an FFGBError, before any row is looked at, if the question would have too little noise.

    `answering` are the clients that are in the total: 1 without masks, 0 if some may be missing.
    """
    if answering < 1:
        raise FFGBError(
            "some clients may be missing in a total: the difference of two would have the noise of one alone; a "
            f"private training needs all sites in each total (leave {option('minimum')} out)"
        )
    most = max(answering - identity.colluders, 1) if answering > 1 else 1
    if question.shares > most:
        raise FFGBError(
            f"the server wants noise that is complete with the shares of {question.shares} clients, and this client is "
            f"sure of {most}: {answering} take part in the total, up to {identity.colluders} of which may tell their "
            "noise (colluders)"
        )
    if question.rows < identity.rows_of_a_unit:
        raise FFGBError(
            f"the server counts on {question.rows} rows of a unit at most, and this client on {identity.rows_of_a_unit}"
        )
    if question.deviation > LARGEST_DEVIATION:
        raise FFGBError("a question with noise has too fine a unit")
    question.check_rows(len(points))
    if (features := getattr(question, "features", None)) is not None:
        _check_bins(features, question)
    if points.weights is not None:
        raise FFGBError("rows have weights, and a private training bounds what a row counts: leave the weights out")


def _check_bins(features: object, question: PrivateQuestion) -> None:
    """Raise an FFGBError unless these are bins that no row can fail in: whether it fails would tell of a row."""
    if not isinstance(features, Bins):
        raise FFGBError("a question with noise is about cells of columns alone")
    for c in range(features.dimension):
        inputs, cuts = features.inputs_of(c), features.cuts_of(c)
        if len(inputs) < 1 or (features.categorical[c] and len(inputs) != len(cuts)):
            raise FFGBError("a question with noise is about columns that cannot be")
    for blocks in (getattr(question, name, None) for name in ("blocks", "model")):
        if isinstance(blocks, CellBlocks) and len(blocks):
            known = len(blocks.cells) == features.dimension > blocks.columns.max() and blocks.columns[:, 0].min() >= 0
            of_columns = blocks.cells[blocks.columns[blocks.columns >= 0]].sum() if known else -1
            if of_columns != len(blocks.groups) or blocks.sizes.min() < 1:
                raise FFGBError("a question with noise is about blocks of cells that cannot be")
    if isinstance(question, ResidualSums):
        cells = int(question.model.starts[-1]) if len(question.model) else 0
        if question.terms.shape != (len(question.constant), cells):
            raise FFGBError("a question with noise is about a model that cannot be")


def with_noise(
    question: PrivateQuestion, part: Tensors, points: Points, identity: Identity, among: bytes = b""
) -> dict[str, Array]:
    """A client's part as it leaves: paid for, and with its share of the noise.

    `among` are the clients of the total (`Secured.among`); empty: this one alone.
    """
    secret = identity.secret(b"ffgb noise")
    name = name_of(question, digest_of_rows(points), secret, among)
    identity.spend(question.what, name, question.mu, question.rows)
    noise = noise_of(secret, name, question.deviation, question.shapes)
    return {key: (array + noise[key]).astype(array.dtype) for key, array in part.items()}


def without_noise(sending: Sending) -> str | None:
    """What a message asks for that would leave without noise, in words; None if there is nothing like that.

    How many rows all sites have together is public.
    """
    match sending:
        case Asked(question=PrivateQuestion()) | Setup() | Introduce() | Roll() | Tie() | Ties() | Prepare() | Unmask():
            return None
        case Asked(question=FileCounts(columns=())):
            return None
        case Take(quiet=True):
            return None
        case Asked():
            return sending.question.what
    return f"{sending.answer}"

"""What leaves a site, in words: for its owner, for the pages, and for the rules of a site."""

from __future__ import annotations

from collections.abc import Mapping

from ffgb.protocol.codec import shown

WORDS: Mapping[str, str] = {
    "question MagnitudeOf": "how large the numbers of each column are, to a factor of 256",
    "question MomentsOf": "averages and spreads of columns",
    "question Histogram": "how many rows lie in each interval of a column",
    "question KeyCounts": "how many rows lie in each interval of a column, and how many values are missing",
    "question CategoryCounts": "how many rows have each category",
    "question RowCounts": "how many rows each class has",
    "question ClassWeights": "the weight of the rows of each class",
    "question WeightOrders": "how large the weights of rows are, to a factor of 2",
    "question TargetOrders": "how large targets are, to a factor of 2",
    "question TargetSums": "averages and spreads of targets",
    "question LeavesOf": "how many rows lie in each leaf of random trees",
    "question BelowEdges": "how many targets lie below some values",
    "question GramOf": "sums of products of two features",
    "question SketchOf": "random sums of products of two features",
    "question PatchMoments": "averages and products of small pieces of images",
    "question NearestSums": "sums of similar small pieces of images",
    "question SteepnessOf": "how steeply targets change between rows",
    "question GradientOf": "sums of features times prediction errors",
    "question SlopesOf": "how the sum of all errors changes along a step",
    "question GradientOrders": "how large prediction errors are, to a factor of 2",
    "question HistogramsOf": "sums of prediction errors over the rows in each interval of a column",
    "question NodeRows": "how many rows lie in each interval of a column, in parts of the data",
    "question MergedHistograms": "sums of prediction errors over the rows in wider intervals of a column",
    "question CellSums": "sums of prediction errors over the rows in each interval of a column",
    "question CurvatureAlong": "how the sums of errors in each interval of a column change along a step",
    "question SlopesAlong": "how the sum of all errors changes along a step",
    "question HeldOut": "sums of the errors of models over rows of this site that they were not trained with",
    "question ChanceRows": "how many rows that it holds out have a predicted probability in each interval",
    "question ChanceSums": "how many rows that it holds out have each class, by wider intervals of the predicted "
    "probability, and sums of these probabilities",
    "question CalibrationSums": "sums that say whether predicted probabilities of the rows that it holds out are right",
    "question ErrorRows": "how many rows that it holds out have a prediction, and an error, in each interval",
    "question ErrorSums": "sums of targets, predictions and errors over the rows that it holds out",
    "question ColumnCounts": "how many rows lie in each interval of a column, with noise",
    "question PairCounts": "how many rows lie in each pair of wide intervals of two columns, with noise",
    "question ResidualSums": "sums of prediction errors over the rows in each interval of a column, with noise",
    "question CellCounts": "how many rows have missing values, and how many have several categories together",
    "question ColumnOrders": "how large the numbers of each column are, to a factor of 2",
    "question ColumnSums": "sums of columns",
    "question RowOrders": "how large the errors and weights of rows are at some coefficients, to a factor of 2",
    "question RowSums": "at some coefficients, sums of errors, of columns times errors, and of products of two columns",
    "question ClusterProducts": "products of two sums of columns times errors",
    "question EventCounts": "how many rows and events there are",
    "question CoxSums": "at some coefficients, how likely the order of events is, and how that changes",
    "question ResidualProducts": "sums of products of two columns times errors",
    "question ConcordantPairs": "how many pairs of rows the model puts in the right order",
    "question TimeCounts": "how many rows of each group have their time in each interval, with and without an event",
    "report": "sums of error and score",
    "increment": "a model that was fitted to the rows of this site alone",
}
"""What leaves a site, as people say it."""
OTHER: Mapping[str, str] = {
    "who is here": "who this site is, and its columns",
    "key": "this site's key for masks",
    "tied": "this site's key for masks with the others",
    "ready": "that it is ready",
    "question FileCounts": "numbers of rows and of missing values",
    "question FileSums": "sums of columns",
    "question NameCounts": "how many rows have each class and category, by hashes of their names",
    "question NamesIn": "names of its classes and common categories",
}
"""What leaves besides what its owner agreed to in words."""


def called(what: str) -> str:
    """What leaves a site in words, if there are any, and else its own name.

    >>> called("report"), called("question NotKnown")
    ('sums of error and score', 'question NotKnown')
    """
    kind = what.partition(",")[0]
    return WORDS.get(kind) or OTHER.get(kind) or shown(what)

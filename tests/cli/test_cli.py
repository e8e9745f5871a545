"""The command line as a stranger meets it: real processes, real terminals, wrong arguments."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffgb import cli
from ffgb.core.moments import MAGNITUDES

FFGB = [sys.executable, "-m", "ffgb"]
QUICK = ["--rounds", "2", "--clients", "3", "--workers", "0", "--data", "wine"]


def ffgb(
    *arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*FFGB, *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, **(env or {})})


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one sentence on standard error of a command that must fail with exit code 2 and print nothing else.

    The command runs in this process, because there are many of them.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["ffgb", *(str(a) for a in arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfd.readouterr()
        assert (end.value.code, out) == (2, ""), err
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        assert lines[0].startswith("ffgb: ")
        return lines[0]

    return run


def site(path: Path, rows: int = 40, seed: int = 0, header: str = "a,b,outcome") -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        for i in range(rows):
            a, b = rng.standard_normal(2)
            file.write(f"{a:.4f},{b:.4f},{'yes' if a + b + 0.1 * i % 2 > 0.5 else 'no'}\n")
    return path


def test_version() -> None:
    assert re.fullmatch(r"ffgb \d+\.\d+\.\d+\n", ffgb("--version").stdout)


def test_help_names_every_option_that_scripts_rely_on() -> None:
    text = ffgb("train", "--help-all").stdout
    for option in (
        *("--data", "--target", "--clients", "--split", "--similarity", "--alpha", "--algorithm", "--learner"),
        *("--rounds", "--local-steps", "--step-size", "--mu", "--participation", "--no-residual", "--seed"),
        *("--out", "--resume", "--json"),
    ):
        assert option in text


def test_the_default_job_reaches_its_bar(tmp_path: Path) -> None:
    """`ffgb train` with no arguments: digits, 20 clients, s = 0.1."""
    began = time.perf_counter()
    result = ffgb("train", "--json", cwd=tmp_path)
    seconds = time.perf_counter() - began
    summary = json.loads(result.stdout)  # one JSON object, and nothing else on standard output
    assert (summary["data"], summary["clients"]) == ("digits", 20)
    assert summary["test_accuracy"] >= 0.95
    assert seconds < 60
    assert (tmp_path / summary["run"] / "model.safetensors").exists()
    config = json.loads((tmp_path / summary["run"] / "config.json").read_text())
    assert (config["split"], config["similarity"]) == ("similarity", 0.1)


def test_the_papers_ensemble_reaches_its_bar_on_mnist(tmp_path: Path, real_data: Path) -> None:
    """The paper's schedule, K = 2: at least 0.95 within 1,000 models exchanged."""
    options = ["--data", "mnist", "--clients", "56", "--similarity", "0.1", "--learner", "mlp", "--local-steps", "2"]
    assert ffgb("train", *options, "--out", "run", cwd=tmp_path).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    within = [line for line in lines if line["models_up"] + line["models_down"] <= 1000]
    assert max(line["test_accuracy"] for line in within) >= 0.95
    assert lines[0]["models_up"] + lines[0]["models_down"] == 56 * 2  # NK a round
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["schedule"], config["step_size"], config["step_power"]) == ("power", 20.0, 1.0)


def test_without_a_terminal_the_result_is_two_plain_lines(tmp_path: Path) -> None:
    result = ffgb("train", *QUICK, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr == ""
    assert re.match(r"test accuracy [01]\.\d+ after 2 rounds with 3 clients; \d+\.\d models exchanged", result.stdout)
    assert "run directory: runs/wine-ffgb-features-1" in result.stdout.replace("\n", " ")
    assert "\x1b" not in result.stdout
    assert ffgb("train", *QUICK, cwd=tmp_path).returncode == 0  # a second run gets a directory of its own
    assert (tmp_path / "runs" / "wine-ffgb-features-2").is_dir()


def in_terminal(
    arguments: list[str], cwd: Path, interrupt_after: str | None = None, keys: bytes = b"\x03"
) -> tuple[str, int]:
    """What a person sees, and the exit code; Ctrl-C, or other keys, are typed once a text has shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.environ.update(TERM="xterm-256color", COLUMNS="120")
        os.execv(sys.executable, [*FFGB, *arguments])
    shown, typed = b"", False
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        if interrupt_after and not typed and interrupt_after.encode() in shown:
            os.write(terminal, keys)
            typed = True
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return shown.decode(errors="replace"), code


def test_a_terminal_shows_progress(tmp_path: Path) -> None:
    shown, code = in_terminal(["train", "--data", "digits", "--rounds", "12", "--workers", "1"], tmp_path)
    assert code == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"digits: 1,4\d\d training rows, 10 classes, 20 clients", shown)
    assert re.search(r"12/12.*test accuracy [01]\.\d{4}.*γ 0\.\d\d.*\d\d models", shown)


def test_ctrl_c_ends_after_the_round_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    options = ["--data", "digits", "--learner", "mlp", "--oracle-steps", "150", "--rounds", "6", "--clients", "8"]
    shown, code = in_terminal(["train", *options, "--out", "run"], tmp_path, interrupt_after="2/6")
    assert code == 130
    assert "stopping after this round" in shown
    assert "continue with: ffgb train --resume --out run" in shown.replace("\r\n", " ")
    rounds = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 2 <= rounds < 6
    assert not (tmp_path / "run" / "summary.json").exists()
    result = ffgb("train", "--resume", "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["rounds"] == 6


def busy(pids: list[str]) -> float:
    """Seconds of processor time that the least busy of these processes has used."""
    ticks = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11] for pid in pids]
    return min(int(t) for t in ticks) / os.sysconf("SC_CLK_TCK")


def test_a_second_ctrl_c_stops_at_once_and_leaves_no_worker(tmp_path: Path) -> None:
    command = [*FFGB, "train", "--data", "digits", "--learner", "mlp", "--oracle-steps", "100000", "--workers", "2"]
    command += ["--out", "run"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    children: list[str] = []
    while len(children) < 2 or busy(children) < 1.0:  # the workers are in the first round
        time.sleep(0.1)
        listed = subprocess.run(["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True)
        children = listed.stdout.split()
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping after this round" in process.stderr.readline() + process.stderr.readline()
    began = time.perf_counter()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert time.perf_counter() - began < 5
    error = process.communicate()[1]
    assert "nothing was written" in error
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()
    for pid in children:
        assert subprocess.run(["ps", "-p", pid], capture_output=True).returncode != 0


def test_ctrl_c_ends_a_comparison_and_begins_no_other_run(tmp_path: Path) -> None:
    command = [
        *FFGB,
        "compare",
        "fedavg",
        "scaffold",
        "--no-tune",
        "--budget",
        "rounds=100000",
        "--jobs",
        "1",
        "--seeds",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--out", "c"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, process_group=0
    )
    metrics = tmp_path / "c" / "fedavg-mlp" / "0" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 2:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    try:
        error = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command goes on" in error
    assert "Traceback" not in error
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"settings.json", "fedavg-mlp"}
    assert [path.name for path in (tmp_path / "c" / "fedavg-mlp").iterdir()] == ["0"]
    rounds = metrics.read_text().count("\n")
    time.sleep(1.0)
    assert metrics.read_text().count("\n") == rounds  # nothing goes on behind our back


def test_evaluate_and_predict_use_the_model_of_a_run(tmp_path: Path) -> None:
    files = [site(tmp_path / f"{name}.csv", seed=seed) for seed, name in enumerate(("north", "south"))]
    trained = ffgb(
        "train", "--data", files[0], "--data", files[1], "--target", "outcome", "--out", tmp_path / "run", "--json"
    )
    summary = json.loads(trained.stdout)
    assert summary["clients"] == 2
    scores = json.loads(ffgb("evaluate", tmp_path / "run", "--json", cwd=tmp_path.parent).stdout)
    assert list(scores) == ["all", "north", "south"]
    assert scores["all"]["accuracy"] == pytest.approx(summary["test_accuracy"])
    new = site(tmp_path / "new.csv", rows=9, seed=7)
    assert "new" in ffgb("evaluate", tmp_path / "run", "--data", new, "--data", files[0]).stdout
    predicted = list(csv.DictReader(ffgb("predict", tmp_path / "run", new).stdout.splitlines()))
    assert len(predicted) == 9
    assert {row["prediction"] for row in predicted} <= {"yes", "no"}
    for row in predicted:
        assert float(row["probability_yes"]) + float(row["probability_no"]) == pytest.approx(1)
        assert (float(row["probability_yes"]) > 0.5) == (row["prediction"] == "yes")
    assert ffgb("predict", tmp_path / "run", new, "-o", tmp_path / "out.csv").stdout == ""
    assert (tmp_path / "out.csv").read_text().startswith("prediction,")


def test_data_list_and_verify(real_data: Path) -> None:
    listed = ffgb("data", "list").stdout
    for name in ("digits", "mnist", "cifar10", "adult", "heart", "cal_housing", "openml:NAME"):
        assert name in listed
    rows = json.loads(ffgb("data", "verify", "mnist", "heart", "digits", "--json").stdout)
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["name"] for row in rows} == {"mnist", "heart", "digits"}


def test_a_regression_run_reports_rmse(tmp_path: Path) -> None:
    result = ffgb("train", "--data", "diabetes", "--clients", "4", "--rounds", "3", "--json", cwd=tmp_path)
    summary = json.loads(result.stdout)
    assert 40 < summary["test_rmse"] < 80
    assert "test_accuracy" not in summary


@pytest.mark.parametrize("learner", ["features", "mlp", "tree"])
def test_ffgb_c_runs_and_counts_its_clips(learner: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--algorithm", "ffgb-c", "--learner", learner, "--data", "wine", "--clients", "4", "--rounds", "3"]
    result = ffgb("train", *options, "--oracle-steps", "50", "--bound", "50", "--json", "--out", out)
    summary = json.loads(result.stdout)
    assert summary["test_accuracy"] > 0.8
    assert summary["clipped"] == summary["clipped_residual"] == 0  # γ is what was measured
    assert summary["gamma_min"] > 0
    assert json.loads(ffgb("evaluate", out, "--json").stdout)["all"]["accuracy"] == pytest.approx(
        summary["test_accuracy"]
    )
    # γ = 1 promises an exact oracle, which this is not: then residuals are clipped, and counted
    result = ffgb("train", *options, "--oracle-steps", "50", "--gamma", "1", "--json", "--out", tmp_path / "b")
    assert json.loads(result.stdout)["clipped_residual"] > 0


@pytest.mark.parametrize("learner", ["features", "linear", "mlp"])
def test_ffgb_l_runs_in_one_round_and_in_many(learner: str, tmp_path: Path) -> None:
    options = ["--algorithm", "ffgb-l", "--learner", learner, "--data", "diabetes", "--clients", "4", "--rounds", "6"]
    options += ["--local-steps", "3", "--oracle-steps", "60", "--split", "iid", "--json"]
    once, many = (
        json.loads(ffgb("train", *options, form, "--out", tmp_path / form).stdout)
        for form in ("--one-round", "--many-rounds")
    )
    assert (once["rounds"], many["rounds"]) == (1, 6)
    assert once["test_rmse"] < 77  # the spread of the target
    for name in ("test_rmse", "train_loss", "gamma_sup", "gamma_lip", "lipschitz"):
        assert once[name] == pytest.approx(many[name], rel=1e-4)
    assert once["bytes_up"] < many["bytes_up"]
    assert once["lipschitz"] > 0


@pytest.mark.parametrize(("algorithm", "up"), [("fedavg", 1), ("fedprox", 1), ("scaffold", 2), ("mime", 2)])
def test_baselines_run_and_count_what_they_send(algorithm: str, up: int, tmp_path: Path) -> None:
    options = ["--algorithm", algorithm, "--learner", "mlp", "--data", "wine", "--clients", "4", "--rounds", "15"]
    result = ffgb("train", *options, "--step-size", "0.1", "--json", "--out", tmp_path / "run")
    summary = json.loads(result.stdout)
    assert summary["test_accuracy"] > 0.8
    size = summary["parameters_up"] / summary["models_up"]
    # and what standardises the inputs, once: orders of magnitude and two moments of 13 columns
    beside = 13 * (len(MAGNITUDES) + 2)
    assert summary["models_up"] == pytest.approx(15 * up + beside / size, rel=1e-6)
    assert summary["gamma_min"] is None
    scores = json.loads(ffgb("evaluate", tmp_path / "run", "--json").stdout)
    assert scores["all"]["accuracy"] == pytest.approx(summary["test_accuracy"])


def test_distill_makes_one_learner_of_an_ensemble(tmp_path: Path, refused: Callable[..., str]) -> None:
    run = tmp_path / "run"
    ffgb("train", "--learner", "mlp", "--data", "wine", "--clients", "3", "--rounds", "3", "--out", run)
    result = ffgb("distill", run, "--steps", "500")
    assert result.returncode == 0, result.stderr
    assert "nothing was exchanged" in result.stdout
    assert "rows that the run was trained on" in result.stdout
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    for name in ("model.safetensors", "config.json"):
        assert "a file of the run itself" in refused("distill", run, "--steps", "1", "-o", run / name)
    assert "does not exist" in refused("reweight", run, "-o", tmp_path / "none" / "m.safetensors")
    assert "--sampled is a share" in refused("reweight", run, "--sampled", "0")
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert ffgb("predict", run / "distilled.safetensors", site(tmp_path / "x.csv")).returncode == 2  # other columns
    ffgb("train", *QUICK, "--out", tmp_path / "closed")
    assert "one array already" in refused("distill", tmp_path / "closed")
    weighted = json.loads(ffgb("reweight", run, "--rounds", "5", "--json").stdout)
    assert weighted["after"]["learners"] == weighted["before"]["learners"]
    assert weighted["after"]["loss"] < weighted["before"]["loss"]
    shown = ffgb("reweight", run, "--rounds", "5").stdout
    assert "exchanged a client" in shown
    assert "as fast" not in shown  # it has as many learners as before
    ffgb("train", "--out", run, "--resume", "--rounds", "4")
    assert not (run / "distilled.safetensors").exists()  # it was made of another model
    assert "one array" in refused("reweight", tmp_path / "closed")
    assert "--distill-rounds is for" in refused("train", "--learner", "mlp", "--distill-rounds", "3")
    assert "trees have none" in refused("train", "--learner", "tree", "--distill", "rounds")


def test_reproduce_writes_numbers_a_table_and_a_picture(tmp_path: Path, refused: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    result = ffgb("reproduce", "theory", "--scale", "small", "--out", tmp_path / "small")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("| what | promised | found |")
    assert result.stdout == (tmp_path / "small" / "theory.md").read_text()
    assert (tmp_path / "small" / "theory.png").stat().st_size < 200_000
    results = json.loads((tmp_path / "small" / "theory.json").read_text())
    assert results["rates"]["rooted"]["slope"] < -0.8
    assert results["floor_c"]["exponent"] == pytest.approx(1.0, abs=0.1)
    assert max(results["floor_c"]["shared"]) < 1e-6 < min(results["floor_c"]["zero"])
    before = (tmp_path / "small" / "theory.json").stat().st_mtime_ns
    began = time.perf_counter()
    assert ffgb("reproduce", "theory", "--scale", "small", "--out", tmp_path / "small").stdout == result.stdout
    assert time.perf_counter() - began < 60  # what is there is not computed again
    assert before
    assert "no experiment 'fig9'" in refused("reproduce", "fig9")
    assert "full or small" in refused("reproduce", "theory", "--scale", "tiny")


# Wrong input: one sentence, exit code 2, nothing half-written.


def train_on(*files: Path, target: str = "outcome") -> list[str | Path]:
    return ["train", *(part for file in files for part in ("--data", str(file))), "--target", target, "--out", "run"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b,result\n1,2,yes\n3,4,no\n", "has no column 'outcome'.*a, b|outcome"),
        ("a,b,outcome\n1,2,yes\n3,4,no\n5,oops,no\n", "'b'.*'oops'"),
        ("a,b,outcome\n1,two,yes\n3,four,no\n", "'b' is text at bad and numbers at good; .* --categories"),
        ("a,b,outcome\n1,2,yes\n3,4,\n", "outcome.*row 2"),
        ("a,b,outcome\n", "no rows|empty"),
        ("", "empty"),
    ],
    ids=["no target", "text", "only text", "no label", "no rows", "empty"],
)
def test_a_bad_site_file_is_refused_by_name(
    content: str, words: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text(content)
    error = refused(*train_on(site(tmp_path / "good.csv"), bad))
    assert re.search(r"\bbad\b", error)
    assert re.search(words, error)
    assert not (tmp_path / "run").exists()


def test_one_class_only_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,outcome\n" + "".join(f"{i},yes\n" for i in range(9)))
    error = refused(*train_on(tmp_path / "a.csv", tmp_path / "b.csv"))
    assert "'yes'" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "digitz"], "digitz.*digits"),
        (["--data", "nowhere.csv", "--target", "y"], "nowhere.csv does not exist"),
        (["--learner", "forest"], "no learner 'forest'"),
        (["--learner", "nobody.knows:net"], "nobody"),
        (["--algorithm", "sgd"], "--algorithm is .*ffgb or .*, not 'sgd'"),
        (["--split", "magic"], "--split is similarity or .*, not 'magic'"),
        (["--split", "natural"], "no natural sites"),
        (["--loss", "square"], "does not fit classification"),
        (["--loss", "hinge"], "--loss is auto or .*, not 'hinge'"),
        (["--schedule", "theorem1"], "μ > 0"),
        (["--schedule", "magic"], "--schedule is search or .*, not 'magic'"),
        (["--step-size", "-1"], "positive"),
        (["--similarity", "1.5"], "1.5"),
        (["--clients", "100000"], "100,?000"),
        (["--participation", "21"], "--participation 21"),
        (["--participation", "1.5"], "--participation 1.5"),
        (["--participation", "some"], "--participation is a number such as 5.*, not 'some'"),
        (["--data", "heart", "--clients", "6"], "4 natural sites, not 6"),
        (["--data", "wine", "--data", "digits"], "wine is a set of its own"),
        (["--target", "y"], "--target is for files"),
        (["--task", "regression"], "digits is classification"),
        (["--learner", "cnn"], "from 16×16 pixels"),
        (["--learner", "math:pi"], "'math:pi' cannot be built"),
        (["--ridge", "nan"], "--ridge (must be|is)"),
        (["--ridge", "inf"], "--ridge (must be|is)"),
        (["--learning-rate", "0"], "--learning-rate is a number above 0"),
        (["--mu", "inf"], "--mu must be a finite number"),
        (["--step-power", "-1"], "--step-power is a number from 0"),
        (["--step-offset", "2"], "t or t\\+1"),
        (["--out", "/proc/nowhere"], "/proc"),
        (["--client-weights", "heavy"], "heavy"),
        (["--hidden", "a,b"], "--hidden"),
        (["--learner", "tree", "--depth", "40"], "depth 1 … 12"),
        (["--algorithm", "ffgb-c", "--gamma", "0"], "γ lies in"),
        (["--algorithm", "ffgb-c", "--gamma", "-0.5"], "γ lies in"),
        (["--algorithm", "ffgb-c", "--mu", "0"], "set --mu"),
        (["--algorithm", "ffgb-c", "--bound", "-1"], "--bound is a number above 0"),
        (["--algorithm", "ffgb-c", "--geometry", "shared"], "--geometry local"),
        (["--algorithm", "ffgb-c", "--schedule", "search"], "cannot be combined with --schedule search"),
        (["--algorithm", "ffgb-c", "--data", "diabetes", "--loss", "square"], "use huber"),
        (["--algorithm", "ffgb-c", "--one-round"], "is for ffgb-l"),
        (["--algorithm", "fedavg", "--learner", "tree"], "trees have none"),
        (["--algorithm", "fedavg", "--mu", "0.1"], "--mu is for ffgb"),
        (["--algorithm", "fedavg", "--geometry", "shared"], "--geometry local"),
        (["--algorithm", "fedavg", "--schedule", "power"], "constant steps"),
        (["--algorithm", "scaffold", "--learner", "mlp", "--step-size", "30"], "diverged|infinite"),
        (["--momentum", "0.9"], "--momentum is for fedavg and fedprox and mime"),
        (["--algorithm", "scaffold", "--momentum", "0.9"], "--momentum is for fedavg and fedprox and mime"),
        (["--algorithm", "fedavg", "--momentum", "1.5"], "--momentum is a number from 0"),
        (["--algorithm", "fedavg", "--prox", "3"], "--prox is for fedprox"),
        (["--algorithm", "fedavg", "--batch", "1.0"], "all points or one"),
        (["--local-epochs", "2"], "--local-epochs is for fedavg"),
        (["--augment"], "--augment is for fedavg"),
        (["--algorithm", "fedavg", "--learner", "mlp", "--augment"], "images for --learner cnn"),
        (["--batch", "much"], "--batch is a number such as 5.*, not 'much'"),
        (["--distill", "clients"], "is one array"),
        (["--distill", "friends", "--learner", "mlp"], "--distill is clients"),
        (["--gamma", "0.5"], "--gamma is for ffgb-c"),
        (["--gamma", "nan"], "--gamma must be a finite number"),
        (["--lipschitz", "3"], "--lipschitz is for ffgb-l"),
        (["--bound", "3"], "--bound is for ffgb-c and ffgb-l"),
        (["--algorithm", "ffgb-l"], "has classes; use ffgb-c"),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--lipschitz", "0.001"],
            "too small: .* pairs of points",
        ),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--lipschitz", "-1"], "positive number"),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--lipschitz", "steep"],
            "auto, max or a number",
        ),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--extension", "upper"],
            "mcshane or middle",
        ),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--bound", "100"], "beyond --bound 100"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--mu", "0.5"], "μ = 1"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--learner", "tree"], "trees jump"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--map", "steps"], "without jumps"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--validation", "0.2"], "leave it out"),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--participation", "2", "--one-round"],
            "no rounds to sample",
        ),
        (["--largest-weight", "1.5"], "--largest-weight is a number above 0 to 1, not 1.5"),
        (["--largest-weight", "0.01"], r"less than an equal share of 20 clients; choose 0\.05 or more"),
        (["--largest-weight", "0.5", "--client-weights", "uniform"], "add --client-weights size"),
        (["--resume"], "add --out"),
        (["--resume", "--out", "nothing-there"], "holds no run"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_wrong_option_is_refused_with_what_to_do(
    arguments: list[str], words: str, tmp_path: Path, refused: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    if "heart" in arguments:
        request.getfixturevalue("real_data")
    if "math:pi" in arguments:
        pytest.importorskip("torch")
    assert re.search(words, refused("train", *arguments))
    assert list(tmp_path.iterdir()) == []


def test_a_target_of_whole_numbers_can_be_a_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        days = rng.integers(1, 9, 40)
        rows = "".join(f"{d + rng.standard_normal():.3f},{d}\n" for d in days)
        (tmp_path / f"{name}.csv").write_text("x,days\n" + rows)
    files = ["--data", "a.csv", "--data", "b.csv", "--target", "days", "--rounds", "2", "--workers", "0", "--json"]
    assert "test_accuracy" in json.loads(ffgb("train", *files, cwd=tmp_path).stdout)
    for words in (["--task", "regression"], ["--loss", "huber"]):
        assert "test_rmse" in json.loads(ffgb("train", *files, *words, cwd=tmp_path).stdout)


def test_a_share_of_clients_and_a_number_of_them(tmp_path: Path) -> None:
    for text, expected in (("1", 1), ("1.0", 3), ("0.67", 2)):
        result = ffgb("train", *QUICK, "--participation", text, "--json", cwd=tmp_path)
        assert json.loads(result.stdout)["participants"] == expected


def test_the_same_command_with_resume_goes_on(tmp_path: Path) -> None:
    command = ["train", *QUICK, "--participation", "0.67", "--loss", "auto", "--split", "iid", "--out", "run"]
    assert ffgb(*command, cwd=tmp_path).returncode == 0
    again = ffgb(*command, "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr


def test_a_learner_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef net(shape, outputs):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(shape[0], 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))\n"
        "\n\ndef narrow(shape, outputs):\n    return torch.nn.Linear(3, outputs)\n"
        "\n\ndef wide(shape, outputs):\n    return torch.nn.Linear(shape[0], outputs + 1)\n"
    )
    files = [site(tmp_path / f"{name}.csv", seed=seed) for seed, name in enumerate(("north", "south"))]
    options: list[str | Path] = ["--data", files[0], "--data", files[1], "--target", "outcome"]
    options += ["--oracle-steps", "30", "--rounds", "2"]
    trained = ffgb("train", *options, "--learner", "mine:net", "--out", "run", "--json", cwd=tmp_path)
    assert json.loads(trained.stdout)["test_accuracy"] > 0.7, trained.stderr
    refused = ffgb("predict", "run", files[0], cwd=tmp_path)
    assert refused.returncode == 2
    assert "--learner mine:net" in refused.stderr
    assert ffgb("predict", "run", files[0], "--learner", "mine:net", cwd=tmp_path).stdout.count("\n") == 41
    assert "north" in ffgb("evaluate", "run", "--learner", "mine:net", cwd=tmp_path).stdout
    for command in (("distill", "run", "--steps", "5"), ("reweight", "run", "--rounds", "2")):
        done = ffgb(*command, "--learner", "mine:net", "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["before"]["learners"] > 1, done.stderr
    for name in ("narrow", "wide"):
        bad = ffgb("train", *options, "--learner", f"mine:{name}", "--out", name, cwd=tmp_path)
        assert bad.returncode == 2
        assert len(bad.stderr.strip().splitlines()) == 1, bad.stderr
        assert not (tmp_path / name).exists()


def test_grey_pixels_as_bytes_are_scaled_as_those_of_mnist(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        y = rng.integers(0, 2, 60)
        x = rng.integers(0, 100, (60, 1, 6, 6)).astype(np.uint8) + (y * 120).astype(np.uint8)[:, None, None, None]
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        np.savez(tmp_path / f"{name}-float.npz", x=(x / 255).astype(np.float32), y=y)
    options = ["--data", "a.npz", "--data", "b.npz", "--rounds", "3", "--workers", "0", "--out", "run"]
    assert ffgb("train", *options, cwd=tmp_path).returncode == 0
    scores = json.loads(
        ffgb("evaluate", "run", "--data", "a.npz", "--data", "a-float.npz", "--json", cwd=tmp_path).stdout
    )
    assert scores["a"] == pytest.approx(scores["a-float"])
    assert scores["a"]["accuracy"] > 0.9


def test_what_cannot_be_written_is_said_in_a_sentence(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert ffgb("train", *QUICK, "--out", "run", cwd=tmp_path).returncode == 0
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 13)))
    (tmp_path / "afile").write_text("")
    assert "afile" in refused("train", *QUICK, "--out", "afile/sub")
    assert "'alcohol'" in refused("predict", "run", "new.npz")
    header = ",".join(json.loads((tmp_path / "run" / "config.json").read_text()) and _columns(tmp_path / "run"))
    (tmp_path / "new.csv").write_text(header + "\n" + ",".join(["1"] * 13) + "\n")
    assert "nowhere" in refused("predict", "run", "new.csv", "-o", "nowhere/p.csv")
    assert "not a model" in refused("predict", "new.csv", "run")


def _columns(run: Path) -> tuple[str, ...]:
    from ffgb import Model

    return Model.load(run).columns


def test_options_that_typer_checks_also_exit_with_2(tmp_path: Path) -> None:
    for arguments in (["--rounds", "many"], ["--nonsense"], ["--local-steps", "0"]):
        result = ffgb("train", *arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert ffgb("train", *QUICK, "--out", "run", cwd=tmp_path).returncode == 0
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    error = refused("train", *QUICK, "--seed", "3", "--out", "run", "--resume")
    assert "was started with --seed 0, not 3" in error
    assert "already holds a run" in refused("train", *QUICK, "--out", "run")
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_a_corrupt_data_file_is_refused(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for file in (data_folder / "mnist").iterdir():
        content = bytearray(file.read_bytes())
        if "t10k-labels" in file.name:
            content[len(content) // 2] ^= 255
        (folder / file.name).write_bytes(content)
    monkeypatch.setenv("FFGB_DATA", str(tmp_path / "data"))
    error = refused("train", "--data", "mnist", "--out", "run")
    assert "t10k-labels-idx1-ubyte.gz" in error
    assert not (tmp_path / "run").exists()


def test_missing_data_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]) -> None:
    monkeypatch.delenv("FFGB_DATA", raising=False)
    assert "FFGB_DATA" in refused("train", "--data", "mnist")


def test_evaluate_and_predict_refuse_what_is_no_run(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "holds no run" in refused("evaluate", tmp_path)
    assert "no model" in refused("predict", tmp_path, tmp_path / "x.csv")

"""Options of sbatch as fields of Slurm's REST API; tests/slurm sends them to a real slurmrestd."""

import pytest

from zndraw_joblib.worker.slurm_options import job_fields


def test_times_and_memory_are_numbers() -> None:
    """Each form of sbatch(1); a part of a minute and of a mebibyte counts as one."""
    minutes = {"90": 90, "1:30": 2, "2:00:00": 120, "1-12": 2160, "1-0:30": 1470, "1-02:03:04": 1564}
    for text, number in minutes.items():
        assert job_fields([f"--time={text}"]) == {"time_limit": {"set": True, "number": number}}, text
    mebibytes = {"500": 500, "500M": 500, "16G": 16384, "1T": 1048576, "1025K": 2}
    for text, number in mebibytes.items():
        assert job_fields(["--mem", text]) == {"memory_per_node": {"set": True, "number": number}}, text


def test_options_have_short_names() -> None:
    """Words of several resources become those of Slurm, and the last value of an option counts."""
    assert job_fields(["-p", "p1", "-pp2", "--gres=gpu:a100:2,shard:1", "-G", "a100:1", "-c2"]) == {
        "partition": "p2",
        "tres_per_node": "gres/gpu:a100:2,gres/shard:1",
        "tres_per_job": "gres/gpu:a100:1",
        "cpus_per_task": 2,
    }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--wait"], "--wait cannot be sent to slurmrestd. Use only --partition, "),
        (["--part=p1"], "--part=p1 cannot be sent to slurmrestd"),
        (["p1"], "p1 cannot be sent to slurmrestd"),
        (["--time=soon"], "--time/-t: 'soon' is no time like 90"),
        (["--mem=a lot"], "--mem: 'a lot' is no memory like 500M"),
        (["--ntasks=x"], "--ntasks/-n: invalid int value: 'x'"),
        (["--mem"], "--mem: expected one argument"),
    ],
)
def test_others_are_refused(options: list[str], text: str) -> None:
    """By name and with the remedy."""
    with pytest.raises(ValueError, match="^" + text.replace("(", r"\(")):
        job_fields(options)

# SPDX-License-Identifier: Apache-2.0
import base64
import hashlib
import itertools
import json
import math
import random
import re
from html.parser import HTMLParser

import pytest

from m2flow.errors import M2flowError
from m2flow.observe import report
from m2flow.observe.line_file import encode
from m2flow.observe.report import chosen_samples, write

VOID = {"meta", "link", "br", "hr", "img", "input", "line", "circle", "rect", "path"}
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">"\'&amp;</td></table></script>'
HOSTILE += "<!-- ]]> {{ 7 * 7 }} \x1b[2J\x00"


class Page(HTMLParser):
    """Reads a page and refuses tags that do not close."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def make(folder, rows=(), samples=(), config=None):
    (folder / "metrics.jsonl").write_bytes(b"".join(encode(row) for row in rows))
    (folder / "samples.jsonl").write_bytes(b"".join(encode(row) for row in samples))
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"script": "/home/me/grpo_math.py", "config": config}))
    text = write(folder).read_text(encoding="utf-8")
    return Page(text), text


def metric_rows(number, names=("reward/mean", "policy/approx_kl", "learner/tokens")):
    random.seed(0)
    return [
        {
            "iteration": i,
            "unix_time_s": 1.7e9 + i,
            "elapsed_s": float(i + 1),
            **{name: random.random() for name in names},
            "time/iteration_s": 1.0,
            "time/rollout.generate_s": 0.6,
            "time/rollout.generate/decode_s": 0.5,
            "time/learner.update_s": 0.3,
            "time/between/checkpoint_s": 0.1,
        }
        for i in range(number)
    ]


def sample(iteration, **more):
    return {"iteration": iteration, "prompt": "1 + 1 =", "completion": "2", "reward": 1.0, "tokens": 1, **more}


def chart_data(page):
    return json.loads(page.texts["script"][0], parse_constant=pytest.fail)


def test_the_page_loads_nothing_from_anywhere(tmp_path):
    page, text = make(tmp_path, metric_rows(5), [sample(0)], {"iterations": 5})
    for _, attributes in page.tags:
        assert "src" not in attributes and attributes.get("href", "#").startswith("#")
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest", text)
    policy = next(tag["content"] for tag in page.all("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_the_policy_allows_the_pages_own_script_and_no_other(tmp_path):
    page, text = make(tmp_path, metric_rows(2))
    script = page.texts["script"][1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "unsafe-inline'; script" in text and "script-src 'unsafe-inline'" not in text


def test_what_a_model_writes_is_text_and_never_markup(tmp_path):
    rows = [{**row, f"my/{HOSTILE}": 1.0, f"time/{HOSTILE}_s": 0.05} for row in metric_rows(2)]
    hostile = sample(0, prompt=HOSTILE, completion=HOSTILE, rewards={HOSTILE: 1.0, "b": 0.5})
    page, text = make(tmp_path, rows, [hostile], {"iterations": 2, "note": HOSTILE, HOSTILE: {"a": HOSTILE}})
    assert len(page.all("script")) == 2 and not page.all("img")
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "\x1b" not in text and "\x00" not in text
    completion = "".join(text for text in page.texts["div"] if "alert(1)" in text and "{{ 7 * 7 }}" in text)
    assert '<script>alert(1)</script><img src=x onerror="alert(2)">"\'&amp;' in completion


def test_the_summary_goes_from_the_first_to_the_last(tmp_path):
    rows = metric_rows(3)
    for row, reward in zip(rows, (0.25, 0.875, 0.75), strict=True):
        row["reward/mean"], row["learner/tokens"] = reward, 1000.0
    page, text = make(tmp_path, rows, config={"iterations": 3})
    words = " ".join(re.sub(r"<[^>]+>", " ", text.split("<main>")[1]).split())
    assert "reward 0.250 → 0.750 best 0.875" in words
    assert "iterations 3 of 3 tokens learned from 3,000 1,000 an iteration wall time 3.0 s 1.0 s an iteration" in words
    assert "finished" in page.texts["span"]


def test_the_best_reward_is_a_number_where_any_is(tmp_path):
    rows = metric_rows(3)
    for row, reward in zip(rows, (math.nan, 0.5, math.inf), strict=True):
        row["reward/mean"] = reward
    assert "best 0.500" in " ".join(re.sub(r"<[^>]+>", " ", make(tmp_path, rows)[1]).split())


def test_a_run_that_ended_early_says_where(tmp_path):
    page, _ = make(tmp_path, metric_rows(3), config={"iterations": 10})
    assert "stopped at 3 of 10" in page.texts["span"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_run_of_no_or_one_iteration_has_a_page(tmp_path, number):
    page, text = make(tmp_path, metric_rows(number), [sample(0)] * number)
    assert bool(page.all("svg")) == (number == 1)
    assert ("no iteration finished" in text) == (number == 0)


def test_an_empty_folder_has_a_page(tmp_path):
    assert "no iteration finished" in write(tmp_path).read_text(encoding="utf-8")


def test_ten_thousand_iterations_stay_small_and_keep_their_spikes(tmp_path):
    names = [f"{group}/{i}" for group in ("reward", "policy", "rollout", "mine") for i in range(4)]
    rows = metric_rows(10_000, names)
    rows[7_777]["policy/3"] = 123.0
    hostile = [sample(i, prompt="<" * 9_000, completion="&" * 9_000) for i in range(10_000)]
    page, text = make(tmp_path, rows, hostile)
    assert len(text.encode()) < 2_000_000
    highs = [max(s.get("high", [0])) for chart in chart_data(page) for s in chart["series"] if s["label"] == "policy/3"]
    assert highs == [123.0]


def test_hundreds_of_metrics_stay_small(tmp_path):
    _, text = make(tmp_path, metric_rows(1500, [f"g{i % 9}/m{i}" for i in range(300)]))
    assert len(text.encode()) < 2_000_000


def test_values_that_are_not_finite_are_counted_and_leave_valid_data(tmp_path):
    rows = metric_rows(40)
    rows[3]["policy/approx_kl"], rows[39]["policy/approx_kl"], rows[5]["reward/mean"] = math.nan, math.inf, -math.inf
    page, text = make(tmp_path, rows)
    kl = next(s for chart in chart_data(page) for s in chart["series"] if s["label"] == "policy/approx_kl")
    assert kl["y"][3] is None and kl["y"][39] is None and kl["y"][4] is not None
    assert "2 not finite" in page.texts["span"] and "1 not finite" in page.texts["span"]
    assert "nan" not in "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL)).lower()


def test_metrics_stand_in_the_group_of_their_prefix(tmp_path):
    page, _ = make(tmp_path, metric_rows(3, ["zeta/a", "policy/approx_kl", "plain", "reward/mean", "held_out/mean"]))
    headings = list(page.texts["h3"])
    assert headings == ["reward", "held out", "policy", "other", "zeta"]


def test_where_the_time_went_adds_up(tmp_path):
    page, text = make(tmp_path, metric_rows(10))
    shares = re.findall(r'title="([^":]+): [^"]*\(([\d.]+)%\)"', text)
    assert shares == [
        ("rollout.generate", "54.5"),
        ("learner.update", "27.3"),
        ("other", "9.1"),
        ("checkpoint (between iterations)", "9.1"),
    ]
    names = [name for name in page.texts["td"] if name.strip()]
    assert names[: names.index("decode") + 1].count("rollout.generate") == 1 and "decode" in names


def test_samples_are_spread_over_the_run_and_the_rest_is_counted():
    rows = [sample(iteration) for iteration in range(1000) for _ in range(4)]
    chosen = chosen_samples(rows)
    iterations = chosen["iterations"]
    assert (iterations[0], iterations[-1], len(iterations), len(chosen["rows"])) == (0, 999, 60, 240)
    assert max(b - a for a, b in itertools.pairwise(iterations)) <= 18
    assert chosen["left_out"] == 4000 - 240


def test_a_sample_without_a_reward_is_no_bad_one():
    rows = [sample(0, reward=None), sample(0, reward=0.0), sample(0, reward=0.5), sample(0, reward="NaN")]
    assert [(s["reward"], s["tone"]) for s in chosen_samples(rows)["rows"]] == [
        ("–", "none"),
        ("0", "bad"),
        ("0.500", "good"),
        ("NaN", "bad"),
    ]


def test_settings_of_one_part_stand_together(tmp_path):
    config = {"iterations": 3, "model": {"model": "tiny", "lora": {"rank": 8}}, "loggers": ["wandb"], "run_dir": None}
    page, _ = make(tmp_path, [], config=config)
    assert page.texts["dt"] == ["iterations", "loggers", "run_dir", "model", "lora.rank"]
    assert page.texts["dd"] == ["3", '["wandb"]', "null", "tiny", "8"]


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(M2flowError, match=r"config.json is damaged"):
        write(tmp_path)


def test_a_full_disk_keeps_the_report_that_was_there(tmp_path, monkeypatch):
    make(tmp_path, metric_rows(2))
    before = (tmp_path / "report.html").read_bytes()

    def full(path, data):
        raise M2flowError(f"cannot write {path}: the disk is full")

    monkeypatch.setattr(report, "replace", full)
    with pytest.raises(M2flowError, match="the disk is full"):
        write(tmp_path)
    assert (tmp_path / "report.html").read_bytes() == before

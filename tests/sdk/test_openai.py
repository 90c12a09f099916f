"""The official OpenAI SDK against the demo: what a user's program does, and what the operator then sees."""

import os
import re
import subprocess
import urllib.request

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

PARENT = "X-Dynamo-Parent-Session-ID"
SYSTEM = "You are one of a team of agents that works on a large code base. " * 8


class Demo:
    def __init__(self, *arguments):
        command = [os.environ["KINDRED"], "demo", "--port", "0", "--admin-port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.edge = self.announced("serving")
        self.admin = self.announced("admin")
        self.client = openai.OpenAI(base_url=f"{self.edge}/v1", api_key="none", max_retries=0, timeout=30)

    def announced(self, what):
        found = re.fullmatch(rf"kindred: {what} on (http://\S+)\n", self.process.stdout.readline())
        assert found, f"the demo did not announce {what}"
        return found.group(1)

    def metrics(self, name, **labels):
        """The series of a metric, labels to value, that carry these labels."""
        with urllib.request.urlopen(f"{self.admin}/metrics", timeout=30) as page:
            text = page.read().decode()
        series = {}
        for line in text.splitlines():
            found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if found:
                carried = dict(re.findall(r'(\w+)="([^"]*)"', found.group(1) or ""))
                if labels.items() <= carried.items():
                    series[tuple(sorted(carried.items()))] = float(found.group(2))
        assert series, f"{name} {labels} is not exported"
        return series

    def chat(self, session, user, parent=None, system=SYSTEM, **more):
        headers = {"x-session-id": session}
        if parent:
            headers[PARENT] = parent
        return self.client.chat.completions.with_raw_response.create(
            model="demo",
            max_tokens=8,
            messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
            extra_headers=headers,
            **more,
        )

    def end(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


@pytest.fixture
def demo():
    running = Demo()
    yield running
    running.end()


@pytest.fixture
def demo_both():
    running = Demo("--scope", "both")
    yield running
    running.end()


def test_chat(demo):
    answer = demo.client.chat.completions.create(
        model="demo", max_tokens=8, messages=[{"role": "user", "content": "hello"}]
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_streamed_chat_says_the_same(demo):
    ask = dict(model="demo", max_tokens=8, messages=[{"role": "user", "content": "hello"}])
    whole = demo.client.chat.completions.create(**ask)
    chunks = list(demo.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == whole.choices[0].message.content
    assert deltas[-1].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_completion(demo):
    answer = demo.client.completions.create(model="demo", prompt="hello", max_tokens=6)
    assert answer.object == "text_completion"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 6
    streamed = demo.client.completions.create(model="demo", prompt="hello", max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == answer.choices[0].text


def test_errors_are_the_sdks_own_kinds(demo):
    with pytest.raises(openai.BadRequestError) as caught:
        demo.client.chat.completions.create(model="demo", messages="not a list")
    assert caught.value.body["message"]
    with pytest.raises(openai.NotFoundError):
        demo.client.embeddings.create(model="demo", input="hello")
    with pytest.raises(openai.BadRequestError) as caught:
        demo.client.completions.create(model="demo", prompt=["one", "two"])
    assert caught.value.body["param"] == "prompt"


def test_models(demo):
    listed = demo.client.models.list()
    assert listed.object == "list"
    ids = [model.id for model in listed]
    assert ids == sorted(set(ids)) and ids
    for model in listed:
        assert model.object == "model" and model.owned_by
        assert demo.client.models.retrieve(model.id) == model
    for unknown in ("no-such-model", "org/no-such-model", "a b/c?d#e"):
        with pytest.raises(openai.NotFoundError) as caught:
            demo.client.models.retrieve(unknown)
        assert caught.value.body["code"] == "model_not_found"
        assert unknown in caught.value.body["message"]


def test_upstreams_metrics_are_read_by_their_own_library(demo):
    demo.client.completions.create(model="demo", prompt="hello", max_tokens=6)
    demo.client.completions.create(model="demo", prompt="hello", max_tokens=6, stream=True).response.read()
    with urllib.request.urlopen(f"{demo.edge}/prometheus/metrics", timeout=30) as page:
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(page.read().decode())}
    roles = ("total_requests", "error_requests", "retry_requests", "completed_requests")
    latencies = ("first_token_latency_seconds", "complete_latency_seconds", "per_token_latency_seconds")
    counters = {"total_requests", "stream_requests", "nonstream_requests", "validation_exceptions", "http_exceptions"}
    counters |= {"internal_errors", "total_responses"} | {f"{role}_{name}" for role in ("ctx", "gen") for name in roles}
    histograms = {"queue_latency_seconds"} | {f"{role}_{name}" for role in ("ctx", "gen") for name in latencies}
    assert {name for name, family in families.items() if family.type == "counter"} == counters
    assert {name for name, family in families.items() if family.type == "histogram"} == histograms
    assert len(families) == len(counters) + len(histograms)
    value = {sample.name: sample.value for family in families.values() for sample in family.samples}
    assert (value["stream_requests_total"], value["nonstream_requests_total"]) == (1, 1)
    assert (value["total_requests_total"], value["ctx_total_requests_total"]) == (2, 2)


@pytest.mark.parametrize("scope", ["context", "both"])
def test_a_family_of_several_turns_stays_together(scope, request):
    demo = request.getfixturevalue("demo" if scope == "context" else "demo_both")
    first = demo.chat("parent-1", "What is to be done?")
    place = {name: first.headers[name] for name in ("x-kindred-context", "x-kindred-rank")}
    generation = first.headers["x-kindred-generation"]
    assert first.parse().usage.prompt_tokens_details.cached_tokens == 0

    generations = set()
    for turn in range(3):
        for session, parent in (("parent-1", None), ("child-a", "parent-1"), ("child-b", "parent-1")):
            answer = demo.chat(session, f"turn {turn} of {session}", parent)
            assert {name: answer.headers[name] for name in place} == place, session
            generations.add((session, answer.headers["x-kindred-generation"]))
            usage = answer.parse().usage
            assert usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2, session
    own = dict(generations)
    assert len(own) == len(generations), "a session changed its generation instance"
    assert own["parent-1"] == generation
    if scope == "both":
        assert set(own.values()) == {generation}

    bound = demo.metrics("kindred_affinity_decisions_total", fleet="context", decision="bound")
    assert sum(bound.values()) == 9
    sticky = demo.metrics("kindred_adp_placements_total", worker=place["x-kindred-context"], reason="sticky")
    assert {dict(labels)["rank"]: count for labels, count in sticky.items() if count} == {place["x-kindred-rank"]: 9}
    for name in ("kindred_in_flight", "kindred_rank_in_flight", "kindred_rank_tokens"):
        assert set(demo.metrics(name).values()) == {0.0}, name

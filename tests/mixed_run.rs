//! Twenty thousand requests with clients that leave, a worker that crashes and comes back, and one
//! that freezes: nothing may leak, and every failure must have a reason.

mod support;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use kindred::wire::Role;
use serde_json::{Value, json};
use support::{Kindred, eventually, fleet, process::WorkerProcess};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
    task::JoinSet,
    time::timeout,
};

const REQUESTS: usize = 20_000;
const CLIENTS: usize = 48;
/// One request in so many is given up by its client.
const LEAVES: usize = 20;

/// Short deadlines, so that a frozen worker costs little time.
const SETTINGS: &str = "max_retries: 2
timeouts: {connect: 1s, context: 2s, silence: 2s}
health: {interval: 250ms, timeout: 500ms}
telemetry: {log: warn}
";

/// How a client saw its request end, in the words of `kindred_requests_total`.
type Seen = BTreeMap<String, usize>;

/// What the clients share.
struct Run {
    edge: SocketAddr,
    next: AtomicUsize,
    seen: Mutex<Seen>,
}

impl Run {
    fn note(&self, outcome: &str) {
        *self
            .seen
            .lock()
            .unwrap()
            .entry(outcome.to_owned())
            .or_default() += 1;
    }
}

/// How a request is made; which is which follows from its number alone.
struct Request {
    stream: bool,
    /// After how many bytes of what it writes and reads the client leaves.
    leaves_after: Option<usize>,
    bytes: Vec<u8>,
}

impl Request {
    fn new(number: usize) -> Self {
        // Spread over sessions, sizes and ways without a pattern that the routers could fall into.
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let stream = mixed.is_multiple_of(2);
        let words = "word ".repeat(1 + mixed % 300);
        let body = json!({
            "model": "m", "max_tokens": 2 + mixed % 7, "stream": stream,
            "messages": [{"role": "user", "content": words}],
        })
        .to_string();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: edge\r\ncontent-type: application/json\r\n\
             x-session-id: s{}\r\ncontent-length: {}\r\n\r\n",
            mixed % 500,
            body.len()
        );
        let leaves = number % LEAVES == 7;
        // From the middle of its body to the middle of an answer.
        let places = [head.len() + body.len() / 2, 0, 150, 400].map(|at| match at {
            at if at > head.len() => at,
            at => head.len() + body.len() + at,
        });
        Self {
            stream,
            leaves_after: leaves.then(|| places[mixed % places.len()]),
            bytes: (head + &body).into_bytes(),
        }
    }
}

async fn client(run: Arc<Run>) {
    let mut connection = None;
    loop {
        let number = run.next.fetch_add(1, Relaxed);
        if number >= REQUESTS {
            return;
        }
        let request = Request::new(number);
        let mut stream = match connection.take() {
            Some(stream) => stream,
            None => TcpStream::connect(run.edge).await.unwrap(),
        };
        let exchange = exchange(&mut stream, &request);
        match timeout(support::PATIENCE, exchange).await.expect("an end") {
            Ended::Left => run.note("left"),
            Ended::Answered { outcome, reusable } => {
                run.note(&outcome);
                connection = reusable.then_some(stream);
            }
        }
    }
}

enum Ended {
    /// The client's own doing.
    Left,
    Answered {
        outcome: String,
        reusable: bool,
    },
}

async fn exchange(stream: &mut TcpStream, request: &Request) -> Ended {
    let most = request.leaves_after.unwrap_or(usize::MAX);
    let written = request.bytes.len().min(most);
    stream.write_all(&request.bytes[..written]).await.unwrap();
    let room = most - written;
    let mut answer = Vec::new();
    let mut chunk = vec![0; 16 * 1024];
    loop {
        if request.leaves_after.is_some() && answer.len() >= room {
            return Ended::Left;
        }
        if let Some(ended) = whole(&answer, request.stream) {
            return ended;
        }
        let read = stream.read(&mut chunk).await.unwrap_or(0);
        if read == 0 {
            let text = String::from_utf8_lossy(&answer).into_owned();
            return Ended::Answered {
                outcome: broken(&text),
                reusable: false,
            };
        }
        answer.extend_from_slice(&chunk[..read]);
    }
}

/// The end of an answer that is all there.
fn whole(answer: &[u8], stream: bool) -> Option<Ended> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let body = &answer[end..];
    let length = head.lines().find_map(|line| {
        let length = line.strip_prefix("content-length:")?;
        length.trim().parse::<usize>().ok()
    });
    let done = match length {
        Some(length) => body.len() >= length,
        None => body.ends_with(b"0\r\n\r\n"),
    };
    let goes_on = !head.contains("connection: close");
    done.then(|| {
        let body = String::from_utf8_lossy(body).into_owned();
        let outcome = match head.starts_with("http/1.1 200") {
            true if stream => of_stream(&body),
            true => "ok".to_owned(),
            false => of_error(&head, &body),
        };
        // After a stream that broke off the connection ends.
        let reusable = goes_on && !(stream && outcome != "ok");
        Ended::Answered { outcome, reusable }
    })
}

fn of_stream(body: &str) -> String {
    if body.contains("data: [DONE]") {
        return "ok".to_owned();
    }
    broken(body)
}

/// A stream that the edge could not bring to its end says so.
fn broken(text: &str) -> String {
    let event = text
        .lines()
        .find_map(|line| line.strip_prefix("data: {\"error\":"));
    let event = event.unwrap_or_else(|| panic!("an answer that breaks off without a word: {text}"));
    let silent = event.contains("upstream_timeout");
    if silent { "timeout" } else { "stream_broken" }.to_owned()
}

/// The outcome that the code of an error stands for.
fn of_error(head: &str, body: &str) -> String {
    let json = body
        .find('{')
        .zip(body.rfind('}'))
        .map(|(from, to)| &body[from..=to]);
    let error: Value = json
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default();
    let code = error["error"]["code"].as_str().unwrap_or_default();
    match code {
        "worker_unreachable" => "unreachable",
        "upstream_timeout" => "timeout",
        "no_instance" => "no_instance",
        "no_capacity" => "overloaded",
        "worker_refused" | "unusable_answer" => "upstream_error",
        _ => panic!("a failure without a reason: {head}{body}"),
    }
    .to_owned()
}

fn open_files(kindred: &Kindred) -> usize {
    let folder = format!("/proc/{}/fd", kindred.pid());
    std::fs::read_dir(folder).unwrap().count()
}

/// Waits until so many of all requests have begun.
fn begun(run: &Run, share: f64) {
    let enough = (REQUESTS as f64 * share) as usize;
    eventually("the requests go on", || {
        (run.next.load(Relaxed) >= enough).then_some(())
    });
}

#[test]
fn twenty_thousand_requests_leave_nothing_behind_and_every_failure_has_a_reason() {
    let workers = |role| -> Vec<WorkerProcess> {
        (0..2)
            .map(|_| WorkerProcess::start(role, &["--decode-interval", "1ms"]))
            .collect()
    };
    let (mut context, generation) = (workers(Role::Context), workers(Role::Generation));
    let addresses = |workers: &[WorkerProcess]| -> Vec<SocketAddr> {
        workers.iter().map(|worker| worker.address).collect()
    };
    let yaml = fleet::yaml(&addresses(&context), &addresses(&generation), SETTINGS);
    let kindred = Kindred::serve(&yaml);
    kindred.assert_idle();
    let files = open_files(&kindred);
    let run = Arc::new(Run {
        edge: kindred.edge(),
        next: AtomicUsize::new(0),
        seen: Mutex::default(),
    });

    let runtime = Runtime::new().unwrap();
    let clients: JoinSet<()> = {
        let _runtime = runtime.enter();
        (0..CLIENTS).map(|_| client(run.clone())).collect()
    };
    begun(&run, 0.2);
    generation[1].freeze();
    begun(&run, 0.3);
    generation[1].thaw();
    begun(&run, 0.5);
    context[1].kill();
    begun(&run, 0.7);
    context[1].restart();
    runtime.block_on(clients.join_all());

    kindred.assert_idle();
    let mut seen = std::mem::take(&mut *run.seen.lock().unwrap());
    eprintln!("as the clients saw it: {seen:?}");
    assert_eq!(seen.values().sum::<usize>(), REQUESTS);
    let left = seen.remove("left").unwrap_or_default();
    assert_eq!(
        left,
        REQUESTS / LEAVES,
        "every client that meant to has left"
    );
    assert!(
        seen["ok"] > REQUESTS * 3 / 4,
        "most requests do well: {seen:?}"
    );
    assert_outcomes(&kindred, &seen, left);
    drop(runtime);
    eventually("no file descriptor is left open", || {
        (open_files(&kindred) <= files).then_some(())
    });
}

/// Every request is counted once, and as its client saw it; one whose client left may have ended in
/// any way before that was noticed.
fn assert_outcomes(kindred: &Kindred, seen: &Seen, left: usize) {
    kindred.assert_metric("kindred_requests_total", &[], REQUESTS as f64);
    let page = kindred.admin("/metrics").text();
    let counted = |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        kindred.metric("kindred_requests_total", &[&label]) as usize
    };
    let mut explained = counted("client_cancel");
    assert!(explained <= left, "{explained} were counted as left");
    for (outcome, seen) in seen {
        let counted = counted(outcome);
        assert!(
            (*seen..=seen + left).contains(&counted),
            "{seen} ended as {outcome}, and {counted} were counted"
        );
        explained += counted;
    }
    assert!(REQUESTS - explained <= left, "{page}");
}

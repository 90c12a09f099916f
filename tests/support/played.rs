//! Workers that do with each request and each connection exactly what a test says.

use std::{
    collections::BTreeSet,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use super::scripted::{Seen, WELL, is_probe};

/// What is done with one request.
pub enum Act {
    /// These bytes are the answer; the connection stays.
    Answer(Vec<u8>),
    /// These bytes, and the end of the connection.
    Close(Vec<u8>),
    /// These bytes, and a reset.
    Reset(Vec<u8>),
    /// The bytes one after the other, each after a wait; the connection stays.
    Drip(Vec<Vec<u8>>, Duration),
    /// Nothing, until the one who asked leaves.
    Silence,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Noted {
    pub seen: Seen,
    /// Which of the worker's connections it came on.
    pub connection: usize,
    pub at: Instant,
}

impl Noted {
    /// The id that the caches are handed over by.
    pub fn id(&self) -> u64 {
        let id = &self.seen.json()["disaggregated_params"]["disagg_request_id"];
        id.as_u64().expect("an id")
    }
}

#[derive(Default)]
struct Log {
    requests: Vec<Noted>,
    connections: usize,
    /// The connections that the other side closed.
    left: BTreeSet<usize>,
}

/// A worker that plays its part.
pub struct Played {
    pub address: SocketAddr,
    log: Arc<Mutex<Log>>,
}

/// By a request, its number, and that of its connection.
type Part = dyn Fn(&Seen, usize, usize) -> Act + Send + Sync;

impl Played {
    /// A worker that does with its requests, counted from 0, what `part` says. It leaves idle
    /// connections open.
    pub fn start(part: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static) -> Self {
        Self::closing_idle(Duration::from_secs(3600), part)
    }

    /// As [`Self::start`], but it closes a connection that was idle for so long after a request.
    pub fn closing_idle(
        idle: Duration,
        part: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        Self::listen(idle, move |seen, count, _| part(seen, count))
    }

    fn listen(
        idle: Duration,
        part: impl Fn(&Seen, usize, usize) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log: Arc<Mutex<Log>> = Arc::default();
        let (noted, part) = (log.clone(), Arc::new(part));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (noted, part) = (noted.clone(), part.clone());
                thread::spawn(move || {
                    let mut number = None;
                    let ended = connection(stream, (&mut number, idle), &noted, &*part);
                    if let (Some(number), Some(Ended::Left)) = (number, ended) {
                        noted.lock().unwrap().left.insert(number);
                    }
                });
            }
        });
        Self { address, log }
    }

    /// As [`Self::start`], but the number that `part` is given is the connection's.
    pub fn start_by_connection(part: impl Fn(&Seen, usize) -> Act + Send + Sync + 'static) -> Self {
        Self::listen(Duration::from_secs(3600), move |seen, _, connection| {
            part(seen, connection)
        })
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Noted> {
        self.log.lock().unwrap().requests.clone()
    }

    /// How many requests have come so far.
    pub fn count(&self) -> usize {
        self.log.lock().unwrap().requests.len()
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.log.lock().unwrap().connections
    }

    /// Whether the other side has closed that connection.
    pub fn is_left(&self, connection: usize) -> bool {
        self.log.lock().unwrap().left.contains(&connection)
    }
}

#[derive(PartialEq)]
enum Ended {
    /// By the other side.
    Left,
    /// By the worker.
    Closed,
}

fn connection(
    mut stream: TcpStream,
    (number, idle): (&mut Option<usize>, Duration),
    log: &Mutex<Log>,
    part: &Part,
) -> Option<Ended> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let mut first = true;
    loop {
        let patience = if first {
            Duration::from_secs(3600)
        } else {
            idle
        };
        first = false;
        let seen = match request(&mut stream, &mut bytes, patience) {
            Ok(seen) => seen,
            Err(ended) => return Some(ended),
        };
        if is_probe(seen.head.as_bytes()) {
            stream.write_all(WELL).ok()?;
            return Some(Ended::Closed);
        }
        let (count, number) = {
            let mut log = log.lock().unwrap();
            let number = *number.get_or_insert(log.connections);
            log.connections = log.connections.max(number + 1);
            log.requests.push(Noted {
                seen: seen.clone(),
                connection: number,
                at: Instant::now(),
            });
            (log.requests.len() - 1, number)
        };
        match part(&seen, count, number) {
            Act::Answer(answer) => stream.write_all(&answer).ok()?,
            Act::Close(answer) => {
                stream.write_all(&answer).ok()?;
                return Some(Ended::Closed);
            }
            Act::Reset(answer) => {
                stream.write_all(&answer).ok()?;
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(Duration::ZERO)).ok()?;
                return Some(Ended::Closed);
            }
            Act::Drip(parts, wait) => {
                for part in parts {
                    if stream.write_all(&part).is_err() {
                        return Some(Ended::Left);
                    }
                    thread::sleep(wait);
                }
            }
            Act::Silence => {
                stream.set_read_timeout(None).ok()?;
                // Nothing more is sent to it, so this ends when the other side does.
                let _ = stream.read(&mut [0]);
                return Some(Ended::Left);
            }
        }
    }
}

/// Reads one request that has a `Content-Length`. `idle` is how long its first byte is waited for.
fn request(stream: &mut TcpStream, bytes: &mut Vec<u8>, idle: Duration) -> Result<Seen, Ended> {
    let mut chunk = [0; 64 * 1024];
    loop {
        if let Some((seen, length)) = whole(bytes) {
            bytes.drain(..length);
            return Ok(seen);
        }
        let wait = bytes.is_empty().then_some(idle);
        stream.set_read_timeout(wait).map_err(|_| Ended::Left)?;
        match stream.read(&mut chunk) {
            Ok(0) => return Err(Ended::Left),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Ended::Closed);
            }
            Err(_) => return Err(Ended::Left),
        }
    }
}

/// The request that `bytes` begin with, once it is all there, and its length.
fn whole(bytes: &[u8]) -> Option<(Seen, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..end - 4]).into_owned();
    let mut seen = Seen {
        head,
        body: Vec::new(),
    };
    let length: usize = seen.header("content-length")?.parse().ok()?;
    seen.body = bytes.get(end..end + length)?.to_vec();
    Some((seen, end + length))
}

/// A JSON answer that leaves the connection open.
pub fn answer(status: &str, fields: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{fields}content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A context worker's good answer to a request.
pub fn context_answer(request: &Seen) -> Vec<u8> {
    let id = &request.json()["disaggregated_params"]["disagg_request_id"];
    let params = format!(
        r#"{{"request_type":"context_only","ctx_request_id":{id},"disagg_request_id":{id},"first_gen_tokens":[7]}}"#
    );
    let choice = format!(r#"{{"finish_reason":"length","disaggregated_params":{params}}}"#);
    let body = format!(r#"{{"choices":[{choice}],"prompt_token_ids":[1],"usage":null}}"#);
    answer("200 OK", "", &body)
}

/// A generation worker's good answer: JSON, or a stream where that is asked for.
pub fn generation_answer(request: &Seen) -> Vec<u8> {
    if request.json()["stream"] != true {
        return answer("200 OK", "", r#"{"choices":[]}"#);
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let events = "data: {}\n\ndata: [DONE]\n\n";
    format!("{head}{:x}\r\n{events}\r\n0\r\n\r\n", events.len()).into_bytes()
}

/// The JSON of a worker that refuses.
pub fn refusal(status: &str, fields: &str) -> Vec<u8> {
    let message = format!("played: {status}");
    answer(
        status,
        fields,
        &serde_json::json!({"message": message}).to_string(),
    )
}

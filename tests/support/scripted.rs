//! Workers whose every byte a test decides.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub head: String,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The only value of a header.
    pub fn header(&self, name: &str) -> Option<String> {
        let mut values = self
            .head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} came twice: {}", self.head);
        value
    }
}

/// A worker that gives scripted answers.
pub struct Scripted {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Scripted {
    /// A worker that answers each request with the parts of `answer`, each written by itself, and
    /// then closes the connection.
    pub fn start(answer: impl Fn(&Seen) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, answer) = (seen.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (noted, answer) = (noted.clone(), answer.clone());
                thread::spawn(move || serve(stream, &noted, &*answer));
            }
        });
        Self { address, seen }
    }

    /// A worker that gives each of these answers once, in their order.
    pub fn one_after_the_other(answers: Vec<Vec<Vec<u8>>>) -> Self {
        let left = Mutex::new(answers.into_iter());
        Self::start(move |_| left.lock().unwrap().next().unwrap())
    }

    /// The requests that have come so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The only request that has come.
    pub fn only(&self) -> Seen {
        let mut seen = self.seen();
        assert_eq!(seen.len(), 1);
        seen.remove(0)
    }
}

fn serve(
    mut stream: TcpStream,
    noted: &Mutex<Vec<Seen>>,
    answer: &(dyn Fn(&Seen) -> Vec<Vec<u8>> + Send + Sync),
) {
    let Some(seen) = read(&mut stream) else {
        return;
    };
    if is_probe(seen.head.as_bytes()) {
        // Whoever asked may have left.
        let _ = stream.write_all(WELL);
        return;
    }
    noted.lock().unwrap().push(seen.clone());
    for part in answer(&seen) {
        if stream.write_all(&part).is_err() {
            return;
        }
    }
}

/// What a stand-in says to a probe of its health, which is none of a test's business.
pub const WELL: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Whether a request with this head is such a probe.
pub fn is_probe(head: &[u8]) -> bool {
    head.starts_with(b"GET /health ")
}

/// Reads a request that has a `Content-Length`.
fn read(stream: &mut TcpStream) -> Option<Seen> {
    stream.set_nodelay(true).ok()?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 64 * 1024];
    loop {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut seen = Seen {
                head,
                body: bytes[end + 4..].to_vec(),
            };
            let length: usize = seen.header("content-length")?.parse().ok()?;
            while seen.body.len() < length {
                match stream.read(&mut chunk).ok()? {
                    0 => return None,
                    read => seen.body.extend_from_slice(&chunk[..read]),
                }
            }
            return Some(seen);
        }
        match stream.read(&mut chunk).ok()? {
            0 => return None,
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// The connection of the first request that is no probe.
fn asked(listener: &TcpListener) -> TcpStream {
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        // A probe that was waited for too long is gone.
        if let Some(seen) = read(&mut stream) {
            if !is_probe(seen.head.as_bytes()) {
                return stream;
            }
            let _ = stream.write_all(WELL);
        }
    }
}

/// A worker that answers one request with what the test hands it, when it hands it.
pub struct Fed {
    pub address: SocketAddr,
    parts: mpsc::Sender<Vec<u8>>,
    /// Whether the one who asked is still there.
    gone: mpsc::Receiver<()>,
}

impl Fed {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (parts, fed) = mpsc::channel::<Vec<u8>>();
        let (left, gone) = mpsc::channel();
        thread::spawn(move || {
            let mut stream = asked(&listener);
            let mut reading = stream.try_clone().unwrap();
            thread::spawn(move || {
                // Nothing more is sent to it, so this ends when the other side does.
                let _ = reading.read(&mut [0]);
                let _ = left.send(());
            });
            for part in fed {
                if stream.write_all(&part).is_err() {
                    return;
                }
            }
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
        Self {
            address,
            parts,
            gone,
        }
    }

    /// Writes these bytes.
    pub fn write(&self, bytes: &[u8]) {
        self.parts.send(bytes.to_vec()).unwrap();
    }

    /// Writes the head of an event stream.
    pub fn begin(&self) {
        self.write(EVENTS_HEAD.as_bytes());
    }

    /// Writes one chunk.
    pub fn chunk(&self, bytes: &[u8]) {
        self.write(&chunk(bytes));
    }

    /// Writes the last chunk.
    pub fn end(&self) {
        self.write(LAST_CHUNK);
    }

    /// Closes the connection.
    pub fn close(self) {}

    /// Whether the one who asked leaves in time.
    pub fn is_left(&self, patience: Duration) -> bool {
        self.gone.recv_timeout(patience).is_ok()
    }
}

const EVENTS_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                           transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

fn chunk(part: &[u8]) -> Vec<u8> {
    let mut chunk = format!("{:x}\r\n", part.len()).into_bytes();
    chunk.extend_from_slice(part);
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// A JSON answer of status 200.
pub fn json(body: &str) -> Vec<Vec<u8>> {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    vec![head.into_bytes(), body.as_bytes().to_vec()]
}

/// An event stream, one chunk for each part.
pub fn events(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut answer = broken_events(parts);
    answer.push(LAST_CHUNK.to_vec());
    answer
}

/// As [`events`], broken off after the last of the parts.
pub fn broken_events(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let head = EVENTS_HEAD.as_bytes().to_vec();
    let chunks = parts.iter().map(|part| chunk(part));
    [head].into_iter().chain(chunks).collect()
}

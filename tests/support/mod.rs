//! What the tests over real sockets share: the built binary, simulated workers, a raw client.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod asking;
pub mod clients;
pub mod etcd;
pub mod exposition;
pub mod fleet;
pub mod guarded;
pub mod h2c;
pub mod instances;
pub mod leaving;
pub mod model;
pub mod played;
pub mod process;
pub mod raw;
pub mod reload;
pub mod scripted;
pub mod seen;
pub mod sse;
pub mod stand_in;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Longest wait for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until `probe` gives a value; panics with `what` when it never does.
pub fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The built binary with its output piped.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kindred"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the binary to its end with `input` on standard input.
pub fn run(args: &[&str], input: &str) -> (i32, String, String) {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = thread::spawn(move || {
        // A program that ends without reading its input closes the pipe.
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// A running `kindred`, ended when dropped.
pub struct Kindred {
    child: Child,
    /// Where the edge listens.
    pub edge: Option<SocketAddr>,
    /// Where the operator's port listens.
    pub admin: Option<SocketAddr>,
    /// Where each worker filter listens, by name.
    pub filters: Vec<(String, SocketAddr)>,
    /// What was printed on standard output up to the announcement.
    pub announced: String,
    log: Arc<Mutex<String>>,
    /// The configuration file of `serve`.
    pub file: Option<PathBuf>,
    _folder: Option<tempfile::TempDir>,
}

impl Kindred {
    /// `kindred demo` on free ports.
    pub fn demo(args: &[&str]) -> Self {
        let mut all = vec!["demo", "--port", "0", "--admin-port", "0"];
        all.extend_from_slice(args);
        Self::start(command(&all), 2, None)
    }

    /// `kindred serve` with that configuration; `listeners` of them are announced.
    pub fn serve(yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kindred.yaml");
        std::fs::write(&file, yaml).unwrap();
        let fleets = [
            "context_servers:",
            "aggregated_servers:",
            "models:",
            "disagg_cluster:",
        ];
        let listeners = fleets.iter().any(|key| yaml.contains(key)) as usize
            + yaml.contains("admin:") as usize
            + yaml.matches("worker:").count();
        let command = command(&["serve", "--config", file.to_str().unwrap()]);
        let mut kindred = Self::start(command, listeners, Some(folder));
        kindred.file = Some(file);
        kindred
    }

    fn start(mut command: Command, listeners: usize, folder: Option<tempfile::TempDir>) -> Self {
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let mut stderr = child.stderr.take().unwrap();
        let sink = log.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut chunk) {
                sink.lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&chunk[..read]));
            }
        });
        let (lines, heard) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Nobody listens any more after the announcement.
                let _ = lines.send(line);
            }
        });
        let mut kindred = Self {
            child,
            edge: None,
            admin: None,
            filters: Vec::new(),
            announced: String::new(),
            log,
            file: None,
            _folder: folder,
        };
        for _ in 0..listeners {
            let Ok(line) = heard.recv_timeout(PATIENCE) else {
                panic!(
                    "kindred did not start: {}{}",
                    kindred.announced,
                    kindred.log()
                );
            };
            kindred.note(&line);
        }
        // The demo prints more; what is there by the time of the last listener is enough to wait for.
        while let Ok(line) =
            heard.recv_timeout(Duration::from_millis(if listeners == 2 { 300 } else { 1 }))
        {
            kindred.announced.push_str(&line);
            kindred.announced.push('\n');
        }
        kindred
    }

    fn note(&mut self, line: &str) {
        let address = || {
            line.rsplit_once("://")
                .and_then(|(_, address)| address.parse().ok())
        };
        if line.starts_with("kindred: serving on") {
            self.edge = address();
        } else if line.starts_with("kindred: admin on") {
            self.admin = address();
        } else if let Some(rest) = line.strip_prefix("kindred: worker filter ") {
            let name = rest.split(' ').next().unwrap().to_owned();
            self.filters
                .extend(address().map(|address| (name, address)));
        }
        self.announced.push_str(line);
        self.announced.push('\n');
    }

    /// Standard error so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn edge(&self) -> SocketAddr {
        self.edge.expect("an edge is running")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.edge())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by name, such as `HUP`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.pid().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits for the process to end by itself.
    pub fn exit_code(&mut self) -> Option<i32> {
        eventually("the process ends", || self.child.try_wait().unwrap()).code()
    }

    /// A page of the operator's port.
    pub fn admin(&self, path: &str) -> raw::Answer {
        raw::get(self.admin.expect("an operator's port is running"), path)
    }

    /// The sum of a metric's series whose labels hold all of `labels`, such as `outcome="ok"`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let page = self.admin("/metrics").text();
        page.lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
                    && labels.iter().all(|label| line.contains(label))
            })
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// Asserts that [`Kindred::metric`] comes to `expected`. What happens at the end of an answer is
    /// counted a moment after its last byte was read. A zero may be there from the start: wait first
    /// for what shows that the request was counted.
    #[track_caller]
    pub fn assert_metric(&self, name: &str, labels: &[&str], expected: f64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let value = self.metric(name, labels);
            if value == expected {
                return;
            }
            let what = format!("{name} {labels:?} is {value} and not {expected}");
            assert!(Instant::now() < deadline, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asserts that everything that is counted in flight comes back to zero.
    pub fn assert_idle(&self) {
        eventually("nothing is in flight", || {
            let busy = [
                "kindred_in_flight",
                "kindred_rank_in_flight",
                "kindred_rank_tokens",
                "kindred_body_budget_bytes",
            ]
            .iter()
            .map(|name| self.metric(name, &[]))
            .sum::<f64>();
            (busy == 0.0).then_some(())
        });
        assert!(
            !self
                .admin("/metrics")
                .text()
                .lines()
                .any(|line| line.starts_with("kindred_") && line.contains(" -"))
        );
    }
}

impl Drop for Kindred {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- log of kindred ---\n{}", self.log());
        }
    }
}

/// A client with deadlines, speaking HTTP/1.1.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .timeout(PATIENCE)
        .build()
        .unwrap()
}

/// A chat request's body.
pub fn chat(user: &str) -> serde_json::Value {
    serde_json::json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": user}]})
}

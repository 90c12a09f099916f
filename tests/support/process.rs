//! Simulated workers as processes of their own, which can be killed, frozen and started again.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
};

use kindred::wire::Role;

use super::command;

/// A simulated worker at an address that stays its own; ended when dropped.
pub struct WorkerProcess {
    pub address: SocketAddr,
    role: Role,
    options: Vec<String>,
    child: Child,
}

impl WorkerProcess {
    /// A worker on a free port. `options` are further ones of `kindred simulate`.
    pub fn start(role: Role, options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let (child, address) = spawn(role, "127.0.0.1:0", &options);
        Self {
            address,
            role,
            options,
            child,
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again at its address, with an empty cache.
    pub fn restart(&mut self) {
        let listen = self.address.to_string();
        (self.child, _) = spawn(self.role, &listen, &self.options);
    }

    /// Stops it from doing anything, with its connections open.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets it go on after [`Self::freeze`].
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let mut kill = Command::new("kill");
        let status = kill.args([&format!("-{name}"), &pid]).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have been killed by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(role: Role, listen: &str, options: &[String]) -> (Child, SocketAddr) {
    let mut child = command(&["simulate", "--role", role.label(), "--listen", listen])
        .args(options)
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let address = line.trim().rsplit_once("http://").unwrap().1;
    (child, address.parse().unwrap())
}

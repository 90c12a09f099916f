//! A real etcd server.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use etcd_client::{Client, PutOptions};
use tokio::runtime::Runtime;

use super::eventually;

/// An etcd server with one member; ended when dropped.
pub struct Etcd {
    pub address: String,
    child: Child,
    peer: String,
    folder: tempfile::TempDir,
    runtime: Runtime,
}

impl Etcd {
    pub fn start() -> Self {
        let [address, peer] = [free_address(), free_address()];
        let folder = tempfile::tempdir().unwrap();
        let child = spawn(&address, &peer, &folder);
        let etcd = Self {
            address,
            child,
            peer,
            folder,
            runtime: Runtime::new().unwrap(),
        };
        etcd.wait();
        etcd
    }

    /// Ends it at once; what it was told stays on its disk.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again at its address, with what was on its disk.
    pub fn restart(&mut self) {
        self.child = spawn(&self.address, &self.peer, &self.folder);
        self.wait();
    }

    fn wait(&self) {
        eventually("etcd answers", || {
            self.try_run(async |client| client.get("x", None).await.map(drop))
        });
    }

    fn try_run<T>(
        &self,
        operate: impl AsyncFnOnce(&mut Client) -> Result<T, etcd_client::Error>,
    ) -> Option<T> {
        self.runtime.block_on(async {
            let mut client = Client::connect([&self.address], None).await.ok()?;
            operate(&mut client).await.ok()
        })
    }

    /// Sets a key for good.
    pub fn put(&self, key: &str, value: &str) {
        let done = self.try_run(async |client| client.put(key, value, None).await.map(drop));
        done.unwrap();
    }

    /// Sets a key that lives as long as a lease of so many seconds that nobody renews.
    pub fn put_for(&self, key: &str, value: &str, seconds: i64) {
        let done = self.try_run(async |client| {
            let lease = client.lease_grant(seconds, None).await?.id();
            let options = PutOptions::new().with_lease(lease);
            client.put(key, value, Some(options)).await.map(drop)
        });
        done.unwrap();
    }

    pub fn delete(&self, key: &str) {
        let done = self.try_run(async |client| client.delete(key, None).await.map(drop));
        done.unwrap();
    }

    /// Forgets every change before now, so that no watch can begin there.
    pub fn compact(&self) {
        let done = self.try_run(async |client| {
            let now = client.get("x", None).await?;
            let revision = now.header().map_or(0, |header| header.revision());
            client.compact(revision, None).await.map(drop)
        });
        done.unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // A test may have ended it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn spawn(address: &str, peer: &str, folder: &tempfile::TempDir) -> Child {
    let (client, peer) = (format!("http://{address}"), format!("http://{peer}"));
    Command::new("etcd")
        .args(["--name", "one", "--data-dir"])
        .arg(folder.path().join("data"))
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("one={peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd is installed (Debian's package etcd-server)")
}

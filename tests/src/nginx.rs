//! A real nginx serving real files, where one is installed.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::wait::eventually;

/// A running nginx with a document root of its own, in the foreground and without root.
#[derive(Debug)]
pub struct Nginx {
    child: Child,
    dir: TempDir,
    addr: SocketAddr,
}

impl Nginx {
    /// `None`, and a line that says so, where nginx is not installed.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with("")
    }

    /// Instead of serving files it passes everything on to that address, unbuffered.
    #[must_use]
    pub fn before(upstream: SocketAddr) -> Option<Self> {
        Self::start_with(&format!(
            "location / {{ proxy_pass http://{upstream}; proxy_http_version 1.1; \
             proxy_buffering off; }}\n"
        ))
    }

    fn start_with(locations: &str) -> Option<Self> {
        if Command::new("nginx").arg("-v").stderr(Stdio::null()).status().is_err() {
            eprintln!("skipped: nginx is not installed");
            return None;
        }
        let dir = TempDir::new().expect("a temporary folder");
        fs::create_dir(dir.path().join("root")).expect("a document root");
        // nginx can't tell which port it got for 0, so one is picked and given back just before.
        let addr = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
        let file = dir.path().join("nginx.conf");
        fs::write(&file, settings(dir.path(), addr, locations)).expect("write nginx.conf");
        let child = Command::new("nginx")
            .args(["-g", "daemon off; master_process off;", "-c"])
            .arg(&file)
            .arg("-p")
            .arg(dir.path())
            .stderr(Stdio::null())
            .spawn()
            .expect("start nginx");
        eventually("nginx to listen", || TcpStream::connect(addr).ok());
        Some(Self { child, dir, addr })
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where files are served from.
    #[must_use]
    pub fn root(&self) -> std::path::PathBuf {
        self.dir.path().join("root")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn settings(dir: &Path, addr: SocketAddr, locations: &str) -> String {
    let dir = dir.display();
    // Started by root it would serve as a user that may not enter the temporary folder.
    let user = if rustix::process::geteuid().is_root() { "user root;\n" } else { "" };
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {dir}/{kind};\n"))
        .collect();
    format!(
        "{user}pid {dir}/nginx.pid;\nerror_log {dir}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\naccess_log off;\nclient_max_body_size 0;\n{temporary}\
         server {{ listen {addr}; root {dir}/root;\n\
         location /stored/ {{ dav_methods PUT; create_full_put_path on; }}\n{locations}}}\n}}\n"
    )
}

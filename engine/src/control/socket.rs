//! The control socket: where `sluice reload` and `sluice status` find the running process.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;

use crate::exit::{Exit, Failure};

/// Where the control socket is to be.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    /// When another process answers there: take a name of our own beside it.
    pub(crate) yields: bool,
}

/// The file of a bound socket; removed when dropped.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl SocketFile {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// For a process that leaves without dropping anything.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

const FILE: &str = "control.sock";

/// What systemd's `RuntimeDirectory=sluice` makes.
const SYSTEM_DIR: &str = "/run/sluice";

/// Where to listen, unless `--control` says otherwise.
pub(crate) fn default_path() -> PathBuf {
    choose(|name| std::env::var_os(name), rustix::process::getuid().as_raw())
}

/// Where to look for a running process: what was asked for, else our own default, else the
/// system's service.
pub(crate) fn find(asked: Option<&Path>) -> PathBuf {
    if let Some(path) = asked {
        return path.to_owned();
    }
    let own = default_path();
    let system = Path::new(SYSTEM_DIR).join(FILE);
    if !own.exists() && system.exists() { system } else { own }
}

/// # Errors
/// When another process answers there, or the file can't be made.
pub(crate) fn bind(place: &Place) -> Result<(UnixListener, SocketFile), Failure> {
    let made =
        |e: &io::Error| Failure::io(format_args!("control socket {}", place.path.display()), e);
    prepare_dir(&place.path)?;
    let path = match UnixStream::connect(&place.path) {
        Ok(_) if place.yields => {
            place.path.with_file_name(format!("control-{}.sock", std::process::id()))
        }
        Ok(_) => {
            let text = format!(
                "another sluice answers on {}; stop it, or choose another --control",
                place.path.display()
            );
            return Err(Failure::new(Exit::Failed, text));
        }
        Err(_) => place.path.clone(),
    };
    remove_stale(&path).map_err(|e| made(&e))?;
    // Made with mode 0600 at once: there is no moment in which others could connect.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(&path);
    rustix::process::umask(before);
    let listener = bound.map_err(|e| made(&e))?;
    listener.set_nonblocking(true).map_err(|e| made(&e))?;
    Ok((listener, SocketFile(path)))
}

/// Nobody answers: what is left of a process that was killed.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(file) if std::os::unix::fs::FileTypeExt::is_socket(&file.file_type()) => {
            std::fs::remove_file(path)
        }
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

fn prepare_dir(path: &Path) -> Result<(), Failure> {
    let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) else {
        return Ok(());
    };
    if !dir.exists() {
        let built = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        built.map_err(|e| Failure::io(format_args!("control socket: {}", dir.display()), &e))?;
    }
    // In a directory that anybody may write to, somebody else may have made ours before us.
    let uid = rustix::process::getuid().as_raw();
    let foreign = std::fs::symlink_metadata(dir)
        .is_ok_and(|found| found.uid() != uid || found.mode() & 0o077 != 0);
    if dir == shared_dir(uid) && foreign {
        let text = format!("{} is open to others; choose another --control", dir.display());
        return Err(Failure::new(Exit::Permission, text));
    }
    Ok(())
}

fn choose(env: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    if let Some(dirs) = env("RUNTIME_DIRECTORY") {
        // systemd joins several by colons; the first is the unit's own.
        let first = std::env::split_paths(&dirs).next().unwrap_or_default();
        return first.join(FILE);
    }
    if uid == 0 {
        return Path::new(SYSTEM_DIR).join(FILE);
    }
    match env("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => Path::new(&dir).join("sluice").join(FILE),
        None => shared_dir(uid).join(FILE),
    }
}

/// Where there is no directory of our own.
fn shared_dir(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/sluice-{uid}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_control_socket_is_where_the_surroundings_say() {
        for (runtime, xdg, uid, expected) in [
            (Some("/run/sluice"), Some("/run/user/7"), 7, "/run/sluice/control.sock"),
            (Some("/run/a:/run/b"), None, 0, "/run/a/control.sock"),
            (None, Some("/run/user/0"), 0, "/run/sluice/control.sock"),
            (None, Some("/run/user/7"), 7, "/run/user/7/sluice/control.sock"),
            (None, Some(""), 7, "/tmp/sluice-7/control.sock"),
            (None, None, 7, "/tmp/sluice-7/control.sock"),
        ] {
            let env = |name: &str| match name {
                "RUNTIME_DIRECTORY" => runtime.map(OsString::from),
                "XDG_RUNTIME_DIR" => xdg.map(OsString::from),
                _ => None,
            };
            assert_eq!(choose(env, uid), Path::new(expected), "{runtime:?} {xdg:?} {uid}");
        }
    }

    #[test]
    fn a_second_process_is_refused_or_yields_and_a_stale_file_is_replaced() {
        let dir = std::env::temp_dir().join(format!("sluice-socket-{}", std::process::id()));
        let path = dir.join(FILE);
        let place = Place { path: path.clone(), yields: false };
        let (_first, file) = bind(&place).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(bind(&place).unwrap_err().text.starts_with("another sluice answers"));
        let (_, second) = bind(&Place { path: path.clone(), yields: true }).unwrap();
        assert_ne!(second.path(), path);
        drop(file);
        assert!(!path.exists(), "whoever leaves in order takes the file along");
        // Killed: the socket is closed, the file stays.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        assert_eq!(bind(&place).unwrap().1.path(), path);
        std::fs::write(dir.join("file"), "mine").unwrap();
        assert!(bind(&Place { path: dir.join("file"), yields: false }).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}

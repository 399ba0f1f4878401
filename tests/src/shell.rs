//! Surroundings of a gateway that only a shell can make: limits of a process, mounts of its own.

use std::process::{Command, Stdio};

/// Has a shell do something first, in the process that then becomes the gateway.
pub fn after(first: &str, shell: &[&str], command: &mut Command) {
    let mut other = Command::new(shell[0]);
    other.args(&shell[1..]).arg(format!("{first} && exec \"$0\" \"$@\""));
    other.arg(command.get_program()).args(command.get_args());
    other.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    *command = other;
}

/// What to call a shell with that may mount what it likes, seen by nobody else.
pub const MOUNTING: [&str; 4] = ["unshare", "-rm", "sh", "-c"];

/// Whether this machine lets anybody have mounts of his own; says so when not.
#[must_use]
pub fn can_mount() -> bool {
    let possible = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status();
    let possible = possible.is_ok_and(|status| status.success());
    if !possible {
        eprintln!("skipped: no mount namespace to be had");
    }
    possible
}

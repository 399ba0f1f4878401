//! How the process ends, and what it says when that is not well.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Exit codes that scripts may rely on; 77 and 78 are those of sysexits.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    Usage,
    Permission,
    Configuration,
}

/// Why a command could not do what was asked. The text is for people and ends without a newline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) text: String,
}

impl Exit {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Permission => 77,
            Self::Configuration => 78,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }

    /// What the system refused; a missing right is told apart from everything else.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let exit = match error.kind() {
            io::ErrorKind::PermissionDenied => Exit::Permission,
            _ => Exit::Failed,
        };
        Self { exit, text: format!("{what}: {}", reason(error)) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// An error as people say it: "Address already in use", without the number behind it.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_has_its_own_code() {
        for (errno, code, text) in [
            (13, 77, "cannot listen on :80: Permission denied"),
            (98, 1, "cannot listen on :80: Address already in use"),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            let failure = Failure::io("cannot listen on :80", &error);
            assert_eq!((failure.exit.code(), failure.text.as_str()), (code, text));
        }
    }
}

//! Whether a reload may begin, and who is to be told how it ended. At most one is under way; all
//! that is asked for meanwhile is one more.

use sluice_config::{Change, Config, Effect, diff};

use crate::exit::{Exit, Failure};

/// `Idle -begin-> Loading -end-> Idle`, or `Loading -begin-> Loading, again -end-> Loading`.
#[derive(Debug)]
pub(crate) struct Reloads<W> {
    /// Waiting for the reload that is under way, if one is.
    current: Option<Vec<W>>,
    /// Asked while it was: the file may have changed since it was read.
    next: Vec<W>,
    again: bool,
}

/// What to do after a reload has ended.
#[derive(Debug)]
pub(crate) struct Settled<W> {
    pub(crate) tell: Vec<W>,
    /// Begin another at once.
    pub(crate) again: bool,
}

impl<W> Reloads<W> {
    pub(crate) fn new() -> Self {
        Self { current: None, next: Vec::new(), again: false }
    }

    /// Somebody wants a reload. True: begin it now.
    pub(crate) fn ask(&mut self, waiter: Option<W>) -> bool {
        if self.current.is_some() {
            self.next.extend(waiter);
            self.again = true;
            return false;
        }
        self.current = Some(waiter.into_iter().collect());
        true
    }

    /// The reload that was under way has ended, well or not.
    pub(crate) fn settle(&mut self) -> Settled<W> {
        let tell = self.current.take().unwrap_or_default();
        let again = std::mem::take(&mut self.again);
        if again {
            self.current = Some(std::mem::take(&mut self.next));
        }
        Settled { tell, again }
    }
}

/// What of the new configuration a running process can't take up, if anything.
pub(crate) fn obstacle(old: &Config, new: &Config) -> Option<Failure> {
    let fixed = |change: &Change| match change.effect {
        Effect::Swap => false,
        Effect::Rebind | Effect::Restart => true,
    };
    let changes = diff(old, new).into_iter().filter(fixed);
    let changed: Vec<_> = changes.map(|change| change.path).collect();
    (!changed.is_empty()).then(|| {
        let text = format!("needs a restart: {}", changed.join(", "));
        Failure::new(Exit::Configuration, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_during_a_reload_gets_a_reload_that_began_after() {
        let mut reloads = Reloads::new();
        assert!(reloads.ask(Some("first")), "idle: begin");
        assert!(!reloads.ask(Some("second")), "loading: wait");
        assert!(!reloads.ask(None), "a signal waits too, and nobody is told");
        assert!(!reloads.ask(Some("third")));
        let settled = reloads.settle();
        assert_eq!((settled.tell, settled.again), (vec!["first"], true));
        let settled = reloads.settle();
        assert_eq!((settled.tell, settled.again), (vec!["second", "third"], false));
        assert!(reloads.ask(None), "idle again");
        assert!(!reloads.ask(None));
        assert!(reloads.settle().again);
        assert!(!reloads.settle().again);
    }

    #[test]
    fn what_a_running_process_cannot_take_up_is_named() {
        let config = |lines: &str| {
            let toml = format!("version = 1\n{lines}\n[route.a]\nmatch = \"/\"\nrespond = {{}}\n");
            sluice_config::parse(&toml).unwrap_or_else(|e| panic!("{e}\n{toml}"))
        };
        let old = config("");
        for (lines, expected) in [
            ("", None),
            ("[server]\ndrain = \"1s\"", None),
            ("[log.access]\nto = \"stderr\"", None),
            ("[server]\nlisten = [\":8080\"]", None),
            ("[server]\nlisten = [\":8081\"]", Some("needs a restart: server.listen")),
            (
                "[server]\nworkers = 3\nio = \"epoll\"\n[admin]\nlisten = \"off\"",
                Some("needs a restart: admin.listen, server.io, server.workers"),
            ),
        ] {
            let found = obstacle(&old, &config(lines));
            assert_eq!(found.as_ref().map(|failure| failure.text.as_str()), expected, "{lines}");
        }
    }
}

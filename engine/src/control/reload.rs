//! Whether a reload may begin, and who is to be told how it ended. At most one is under way; all
//! that is asked for meanwhile is one more.

use sluice_config::Config;

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
    let listen = |config: &Config| config.server.listen.iter().map(|l| l.addr).collect::<Vec<_>>();
    let fixed = [
        ("server.listen", listen(old) != listen(new)),
        ("server.workers", old.server.workers != new.server.workers),
        ("server.io", old.server.io != new.server.io),
        ("server.limit_keys", old.server.limit_keys != new.server.limit_keys),
        ("admin.listen", old.admin.listen != new.admin.listen),
    ];
    let changed: Vec<_> = fixed.iter().filter(|(_, changed)| *changed).map(|(k, _)| *k).collect();
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
}

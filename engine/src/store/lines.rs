//! The lines to a store's servers: one for each primary that holds shards, made when it is found,
//! given up when it fails.

use sluice_config::StoreServer;
use sluice_policy::keeper::ALL;

use super::find::Found;
use super::link::Link;
use super::vouch::Held;

#[derive(Debug, Default)]
pub(super) struct Lines {
    all: Vec<Line>,
    lives: u64,
}

#[derive(Debug)]
struct Line {
    server: StoreServer,
    shards: u64,
    state: State,
}

/// Each try to connect has a life of its own: what comes of an older one is not heard.
#[derive(Debug)]
enum State {
    Down,
    Making { life: u64 },
    Up { life: u64, link: Link },
}

/// Where to send something.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) life: u64,
    pub(super) link: Link,
}

impl Lines {
    /// Who holds what, from now on. A line that holds nothing any more stays until it fails: it
    /// may still owe an answer. Returns the shards that nobody holds.
    pub(super) fn hold(&mut self, found: Vec<Found>) -> u64 {
        self.all.retain(|line| matches!(line.state, State::Up { .. }));
        self.all.iter_mut().for_each(|line| line.shards = 0);
        let mut missing = ALL;
        for Found { server, shards } in found {
            missing &= !shards;
            self.line(server).shards = shards;
        }
        missing
    }

    /// Those to connect to now.
    pub(super) fn make(&mut self) -> Vec<(u64, StoreServer)> {
        let mut wanted = Vec::new();
        for line in &mut self.all {
            if matches!(line.state, State::Down) {
                self.lives += 1;
                line.state = State::Making { life: self.lives };
                wanted.push((self.lives, line.server.clone()));
            }
        }
        wanted
    }

    /// False: nobody waits for this one any more.
    pub(super) fn made(&mut self, life: u64, made: Option<Link>) -> bool {
        let is = |line: &&mut Line| matches!(line.state, State::Making { life: l } if l == life);
        let Some(line) = self.all.iter_mut().find(is) else { return false };
        line.state = made.map_or(State::Down, |link| State::Up { life, link });
        true
    }

    /// False: it had been given up before.
    pub(super) fn fail(&mut self, life: u64) -> bool {
        let Some(line) = self.all.iter_mut().find(|line| line.is_up(life)) else { return false };
        line.state = State::Down;
        true
    }

    pub(super) fn is_up(&self, life: u64) -> bool {
        self.all.iter().any(|line| line.is_up(life))
    }

    /// The lives of lines that hold some of these shards.
    pub(super) fn holding(&self, shards: u64) -> Vec<u64> {
        let holding = self.all.iter().filter(|line| line.shards & shards != 0);
        holding.filter_map(|line| line.way().map(|way| way.life)).collect()
    }

    /// All that can be asked, with what they hold.
    pub(super) fn held(&self) -> Vec<Held> {
        let held = |line: &Line| {
            let Way { link, .. } = line.way()?;
            Some(Held { server: line.server.clone(), shards: line.shards, link })
        };
        self.all.iter().filter_map(held).collect()
    }

    /// The line of this life.
    pub(super) fn link(&self, life: u64) -> Option<Link> {
        Some(self.all.iter().find(|line| line.is_up(life))?.way()?.link)
    }

    /// To the holder of this shard.
    pub(super) fn way_of(&self, shard: u64) -> Option<Way> {
        self.all.iter().find(|line| line.shards & (1 << shard) != 0)?.way()
    }

    /// To this server. Adds a line to it if there is none: make it.
    pub(super) fn way_to(&mut self, server: StoreServer) -> Option<Way> {
        self.line(server).way()
    }

    /// Shards whose holder can be asked.
    pub(super) fn reach(&self) -> u64 {
        let up = self.all.iter().filter(|line| line.way().is_some());
        up.fold(0, |all, line| all | line.shards)
    }

    pub(super) fn servers(&self) -> Vec<StoreServer> {
        let holding = self.all.iter().filter(|line| line.shards != 0);
        holding.map(|line| line.server.clone()).collect()
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    fn line(&mut self, server: StoreServer) -> &mut Line {
        let at = self.all.iter().position(|line| line.server == server);
        let at = at.unwrap_or_else(|| {
            self.all.push(Line { server, shards: 0, state: State::Down });
            self.all.len() - 1
        });
        &mut self.all[at]
    }
}

impl Line {
    fn is_up(&self, life: u64) -> bool {
        matches!(self.state, State::Up { life: l, .. } if l == life)
    }

    fn way(&self) -> Option<Way> {
        match &self.state {
            State::Up { life, link } => Some(Way { life: *life, link: link.clone() }),
            State::Down | State::Making { .. } => None,
        }
    }
}

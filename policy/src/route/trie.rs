//! The paths of one host, segment by segment, each with the rank of the route that it leads to.

use crate::plan::RouteId;
use crate::route::pattern::Segment;

/// A node: what may follow, and the routes that end here. Small ranks are more specific.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    /// Sorted by text.
    literals: Vec<(String, Self)>,
    /// The mark of each literal: close together, so that a search among hundreds stays in cache.
    marks: Vec<u64>,
    param: Option<Box<Self>>,
    /// Routes whose path ends here, by rank.
    ends: Vec<(u32, RouteId)>,
    /// Routes that take all that follows, by rank.
    rests: Vec<(u32, RouteId)>,
    /// The smallest rank here or below.
    best: Option<u32>,
}

/// Asked of a route whose path matches: does the rest of it?
pub(crate) type Takes<'a> = dyn FnMut(RouteId) -> bool + 'a;

impl Trie {
    pub(crate) fn insert(&mut self, segments: &[Segment], rank: u32, id: RouteId) {
        self.best = Some(self.best.map_or(rank, |best| best.min(rank)));
        match segments {
            [] => self.ends.push((rank, id)),
            [Segment::Rest, ..] => self.rests.push((rank, id)),
            [Segment::Param, more @ ..] => {
                self.param.get_or_insert_default().insert(more, rank, id)
            }
            [Segment::Literal(text), more @ ..] => {
                let at = match self.literal(text) {
                    Ok(at) => at,
                    Err(at) => {
                        self.literals.insert(at, (text.clone(), Self::default()));
                        self.marks.insert(at, mark(text));
                        at
                    }
                };
                self.literals[at].1.insert(more, rank, id);
            }
        }
    }

    /// The most specific route whose path matches and that `takes` the request.
    pub(crate) fn find(&self, path: &str, takes: &mut Takes<'_>) -> Option<RouteId> {
        let mut found = None;
        // `*` (of OPTIONS) is not a path.
        self.search(Some(path.strip_prefix('/')?), takes, &mut found);
        found.map(|(_, id)| id)
    }

    /// `rest` is what is left of the path after a slash; None when nothing is, not even a slash.
    fn search(
        &self,
        rest: Option<&str>,
        takes: &mut Takes<'_>,
        found: &mut Option<(u32, RouteId)>,
    ) {
        let worth = |best: Option<u32>, found: &Option<(u32, RouteId)>| {
            best.is_some_and(|best| found.is_none_or(|(rank, _)| best < rank))
        };
        if !worth(self.best, found) {
            return;
        }
        if let Some(rest) = rest {
            // Segments are short: looking at each byte beats the setup of a vectored search.
            let end = rest.bytes().position(|b| b == b'/').unwrap_or(rest.len());
            let (segment, more) = (rest.get(..end).unwrap_or_default(), rest.get(end + 1..));
            if !self.literals.is_empty()
                && let Ok(at) = self.literal(segment)
            {
                self.literals[at].1.search(more, takes, found);
            }
            if let Some(param) = self.param.as_ref().filter(|_| !segment.is_empty()) {
                param.search(more, takes, found);
            }
        }
        let ends = if rest.is_none() { self.ends.as_slice() } else { &[] };
        for &(rank, id) in ends.iter().chain(&self.rests) {
            if worth(Some(rank), found) && takes(id) {
                *found = Some((rank, id));
            }
        }
    }

    /// Where that literal is, or where it would be.
    fn literal(&self, text: &str) -> Result<usize, usize> {
        let mark = mark(text);
        let start = self.marks.partition_point(|m| *m < mark);
        let same = self.marks[start..].partition_point(|m| *m == mark);
        let among = &self.literals[start..start + same];
        match among.binary_search_by(|(t, _)| t.as_str().cmp(text)) {
            Ok(at) => Ok(start + at),
            Err(at) => Err(start + at),
        }
    }
}

/// The first eight bytes, so that marks sort as the texts do.
fn mark(text: &str) -> u64 {
    match text.as_bytes().first_chunk() {
        Some(first) => u64::from_be_bytes(*first),
        None => text.bytes().chain([0; 8]).take(8).fold(0, |mark, b| (mark << 8) | u64::from(b)),
    }
}

//! One request's head: its text, where things lie in it, and what it means. Kept and used again
//! for the next request of the connection, so that a warm one allocates nothing.

use std::cell::RefCell;
use std::net::IpAddr;
use std::time::Duration;

use sluice_policy::facts::{Body, Facts, Field, Headers};
use sluice_policy::plan::Rewrite;

use super::fields::Kind;

/// Byte offsets, end exclusive.
pub(crate) type Span = (u32, u32);

/// A request's head. `text` may hold more than the head: what follows starts at `end`.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) text: Vec<u8>,
    /// Length of the head, its empty line included; 0 while it has not all come.
    pub(crate) end: usize,
    /// Where its first line begins.
    pub(crate) line_at: u32,
    /// The method, then path and query as received (in an absolute form what follows the
    /// authority), with nothing between: text that is known to be UTF-8.
    line: String,
    method_len: usize,
    /// Offset of the `?` in the line; its end when there is none.
    query_at: usize,
    /// Where the authority of an absolute form lies.
    pub(crate) authority: Option<Span>,
    /// The value of its one `Host` field.
    pub(crate) host_field: Option<Span>,
    pub(crate) version: Version,
    pub(crate) fields: Vec<Field>,
    /// What to do with each field, in the same order.
    pub(crate) kinds: Vec<Kind>,
    pub(crate) body: Body,
    /// The client takes another request on this connection after this one.
    pub(crate) keep_alive: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub(crate) expects: bool,
    pub(crate) user_agent: Option<Span>,
    pub(crate) request_id: Option<Span>,
    pub(crate) traceparent: Option<Span>,
    /// How long the client will wait, by its own word.
    pub(crate) patience: Option<Duration>,
    /// Lower case, no port.
    pub(crate) host: String,
    /// What that was made of: most requests of a connection name the same.
    host_text: Vec<u8>,
    /// The normal form of the path, when it is not the one received.
    pub(crate) path: Option<String>,
    /// What came had segments that servers read differently: only the normal form is passed on.
    pub(crate) crooked: bool,
    spare_path: String,
}

/// The memory of heads whose connections are over, for those that come.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    spare: RefCell<Vec<Head>>,
}

/// So many are kept.
const HEADS_KEPT: usize = 64;

/// And none that has grown beyond what is usual.
const KEPT_FIELDS: usize = 64;
const KEPT_TEXT: usize = 1024;

impl Heads {
    pub(crate) fn take(&self) -> Head {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// A head whose text has been taken out of it.
    pub(crate) fn give(&self, mut head: Head) {
        let mut spare = self.spare.borrow_mut();
        let texts = [&head.line, &head.host, &head.spare_path].map(String::capacity);
        let usual = head.fields.capacity() <= KEPT_FIELDS
            && head.host_text.capacity() <= KEPT_TEXT
            && texts.iter().all(|n| *n <= KEPT_TEXT);
        if usual && spare.len() < HEADS_KEPT {
            head.forget(0);
            head.set_line("", "", 0);
            head.set_host(b"", "");
            spare.push(head);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Version {
    Http10,
    #[default]
    Http11,
}

impl Head {
    /// Forget the request, keep the memory and the bytes that came after it.
    pub(crate) fn forget(&mut self, consumed: usize) {
        self.text.drain(..consumed.min(self.text.len()));
        self.end = 0;
        self.fields.clear();
        self.kinds.clear();
        self.authority = None;
        self.host_field = None;
        self.body = Body::Empty;
        self.expects = false;
        self.user_agent = None;
        self.request_id = None;
        self.traceparent = None;
        self.patience = None;
        self.crooked = false;
        if let Some(path) = self.path.take() {
            self.spare_path = path;
        }
    }

    /// Forget what was read, and what memory that took: the rest may be long in coming.
    pub(crate) fn shed(&mut self) {
        let text = std::mem::take(&mut self.text);
        *self = Self { text, ..Self::default() };
    }

    /// A string to put a normalised path in.
    pub(crate) fn spare_path(&mut self) -> String {
        std::mem::take(&mut self.spare_path)
    }

    pub(crate) fn keep_spare_path(&mut self, path: String) {
        self.spare_path = path;
    }

    pub(crate) fn bytes(&self, (from, to): Span) -> &[u8] {
        self.text.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Remember method and target; `path_len`: what of the target comes before its `?`.
    pub(crate) fn set_line(&mut self, method: &str, target: &str, path_len: usize) {
        self.line.clear();
        self.line.push_str(method);
        self.line.push_str(target);
        self.method_len = method.len();
        self.query_at = method.len() + path_len;
    }

    /// Whether [`Self::host`] was made of this.
    pub(crate) fn has_host(&self, text: &[u8]) -> bool {
        self.host_text == text && !text.is_empty()
    }

    /// Remember the host's name, and what it was made of.
    pub(crate) fn set_host(&mut self, text: &[u8], name: &str) {
        self.host_text.clear();
        self.host_text.extend_from_slice(text);
        self.host.clear();
        self.host.push_str(name);
        self.host.make_ascii_lowercase();
    }

    pub(crate) fn method(&self) -> &str {
        self.line.get(..self.method_len).unwrap_or_default()
    }

    /// The path as received.
    pub(crate) fn raw_path(&self) -> &str {
        self.line.get(self.method_len..self.query_at).unwrap_or_default()
    }

    /// The path by which the request is judged.
    pub(crate) fn path(&self) -> &str {
        match &self.path {
            Some(path) => path,
            None => self.raw_path(),
        }
    }

    /// The path that the upstream is asked for: as it came, unless it was crooked.
    pub(crate) fn path_to_pass(&self) -> &str {
        if self.crooked { self.path() } else { self.raw_path() }
    }

    /// With its `?`; empty when there is none.
    pub(crate) fn query_with_mark(&self) -> &str {
        self.line.get(self.query_at..).unwrap_or_default()
    }

    pub(crate) fn query(&self) -> &str {
        self.line.get(self.query_at + 1..).unwrap_or_default()
    }

    pub(crate) fn headers(&self) -> Headers<'_> {
        Headers::new(&self.text, &self.fields)
    }

    /// Whether the first line can be passed on as it came.
    pub(crate) fn line_stays(&self, rewrite: &Rewrite) -> bool {
        self.version == Version::Http11
            && self.authority.is_none()
            && !self.crooked
            && rewrite.strip_prefix.is_none()
            && rewrite.add_prefix.is_none()
    }

    /// Where the last field's line ends: in front of the empty line.
    pub(crate) fn fields_end(&self) -> u32 {
        u32::try_from(self.end.saturating_sub(2)).unwrap_or(u32::MAX)
    }

    /// Do not pass on the fields whose name `unwanted` says so of.
    pub(crate) fn drop_fields(&mut self, unwanted: impl Fn(&[u8]) -> bool) {
        for (kind, field) in self.kinds.iter_mut().zip(&self.fields) {
            let name = self.text.get(field.name.0 as usize..field.name.1 as usize);
            if *kind == Kind::Plain && unwanted(name.unwrap_or_default()) {
                *kind = Kind::Drop;
            }
        }
    }

    pub(crate) fn facts(&self, peer: IpAddr, client: IpAddr) -> Facts<'_> {
        Facts {
            peer,
            client,
            method: self.method(),
            host: &self.host,
            path: self.path(),
            query: self.query(),
            headers: self.headers(),
            head_bytes: u32::try_from(self.end).unwrap_or(u32::MAX),
            body: self.body,
            patience: self.patience,
            // Nobody verifies who asks yet.
            identity: None,
        }
    }
}

//! A limit as a store of shared counts sees it.

/// How tokens leave the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Held in advance: for limits that are fast enough for it.
    Lease,
    /// Consumed one by one, as requests come: for those that are slow, or small.
    Direct,
}

/// What the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// `units` to a token, `refill` units a microsecond.
    Bucket,
    /// What was spent within `units` microseconds (0: a month of the calendar) is noted as one, at
    /// the end of them, and counts for `refill` microseconds more. 0 there is a window with edges.
    Window,
    /// So many at once. What is held are places; those in use are told, not those ever used.
    Places,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub count: Count,
    pub class: Class,
    /// When the store has lost something, count as if all had been used.
    pub strict: bool,
    pub units: u64,
    pub refill: u64,
    pub capacity: u32,
    /// What one request takes, or at least.
    pub cost: u32,
}

const MONTH_US: u64 = 30 * 86_400 * 1_000_000;
const REPORT_MIN_US: u64 = 20_000;
const REPORT_MAX_US: u64 = 250_000;

impl Terms {
    /// As the store's script reads it.
    pub const fn kind(&self) -> &'static str {
        match (self.count, self.class, self.strict) {
            (Count::Bucket, Class::Lease, false) => "t",
            (Count::Bucket, Class::Lease, true) => "T",
            (Count::Bucket, Class::Direct, false) => "d",
            (Count::Bucket, Class::Direct, true) => "D",
            (Count::Window, Class::Lease, false) => "w",
            (Count::Window, Class::Lease, true) => "W",
            (Count::Window, Class::Direct, false) => "x",
            (Count::Window, Class::Direct, true) => "X",
            (Count::Places, _, false) => "c",
            (Count::Places, _, true) => "C",
        }
    }

    /// Microseconds in which a limit that is used up is whole again.
    pub fn whole_us(&self) -> u64 {
        match self.count {
            Count::Bucket => {
                u64::from(self.capacity).saturating_mul(self.units) / self.refill.max(1)
            }
            Count::Window if self.refill > 0 => self.refill,
            Count::Window if self.units > 0 => self.units,
            Count::Window => MONTH_US,
            Count::Places => 0,
        }
    }

    /// Microseconds until there is another token, when there is none.
    pub(crate) fn token_us(&self) -> u64 {
        match self.count {
            Count::Bucket => self.units.div_ceil(self.refill.max(1)),
            Count::Window => self.whole_us(),
            Count::Places => 0,
        }
    }

    /// What was spent is told after this long: a window counts it from then.
    pub(crate) fn report_us(&self) -> u64 {
        match self.count {
            Count::Bucket | Count::Places => REPORT_MAX_US,
            Count::Window => (self.whole_us() / 100).clamp(REPORT_MIN_US, REPORT_MAX_US),
        }
    }

    /// Whether a key that has these terms can take on those, keeping all that was told.
    pub(crate) fn becomes(&self, other: &Self) -> bool {
        self.count == other.count && self.class == other.class
    }
}

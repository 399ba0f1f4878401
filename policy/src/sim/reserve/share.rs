//! Max-min fair shares, as the script has them.

use super::{Record, int, whole};
use crate::mechanism::lease::{Count, Message};

const ACTIVE: i64 = 1_000_000;
const MONTH: i64 = 30 * 86_400 * 1_000_000;

/// How much of what is there the node may have now, beside what the others have earned and not
/// collected; and its fair rate.
pub(super) fn share<'a>(
    me: &mut Record,
    others: impl Iterator<Item = &'a Record> + Clone,
    m: &Message,
    avail: i64,
    clock: i64,
) -> (i64, i64) {
    let (want, demand, cap) = (int(m.want), int(m.demand), i64::from(m.terms.capacity) * 1000);
    let rate = rate(m);
    let active = || others.clone().filter(|r| clock - r.seen < ACTIVE && r.demand > 0);
    let mut demands: Vec<i64> = [demand].into_iter().chain(active().map(|r| r.demand)).collect();
    if demands.len() == 1 || demands.iter().sum::<i64>() <= rate {
        me.credit = 0;
        return (want.min(avail).max(0), rate);
    }
    demands.sort_unstable();
    let fair = water(&demands, rate);
    let earned =
        |demand: i64, seen: i64| whole((demand.min(fair) * (clock - seen)) as f64 / 1_000_000.0);
    let credits = || active().map(|r| cap.min(r.credit + earned(r.demand, r.seen)));
    let (aside, top) = (credits().sum::<i64>(), credits().max().unwrap_or(0));
    me.credit = cap.min(me.credit + earned(demand, me.seen));
    let mut bound = (me.credit / 1000).max(whole(avail as f64 - aside as f64 / 1000.0));
    if bound < 1 && me.credit >= top {
        bound = 1;
    }
    let granted = want.min(avail).min(bound).max(0);
    me.credit = if granted < want { (me.credit - granted * 1000).max(0) } else { 0 };
    (granted, demand.min(fair))
}

fn rate(m: &Message) -> i64 {
    let (units, refill) = (int(m.terms.units), int(m.terms.refill));
    match m.terms.count {
        Count::Bucket => whole(refill as f64 * 1e9 / units as f64),
        Count::Window | Count::Places => {
            let period = [refill, units, MONTH].into_iter().find(|us| *us > 0);
            whole(f64::from(m.terms.capacity) * 1e9 / period.unwrap_or(MONTH) as f64)
        }
    }
}

fn water(demands: &[i64], rate: i64) -> i64 {
    let (mut left, mut n, mut fair) = (rate, demands.len(), 0);
    for &demand in demands {
        fair = left / i64::try_from(n.max(1)).unwrap_or(1);
        if demand > fair {
            break;
        }
        (left, n) = (left - demand, n - 1);
    }
    fair
}

//! Tells the node how busy the machine is, once a second, for those who shed by it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::shed::is_weighed;

use super::desk::Desk;

const EVERY: Duration = Duration::from_secs(1);

/// Until the process ends.
pub(crate) async fn keep(desk: Arc<Desk>) {
    let times = || {
        let looked: u64 = desk.fleet().cells().iter().map(|it| it.busy_poll_us.value()).sum();
        Some(less_looks(times()?, Duration::from_micros(looked)))
    };
    let mut last = None;
    loop {
        tokio::time::sleep(EVERY).await;
        if !is_weighed(&desk.fleet().generation().config.plan) {
            last = None;
            continue;
        }
        let now = times();
        let load = fs::read_to_string("/proc/loadavg").ok().and_then(|text| load(&text));
        let cpu = last.zip(now).map_or(0, |(last, now)| busy(last, now));
        desk.fleet().ledger().weigh(cpu, load.unwrap_or(0));
        last = now;
    }
}

/// Ticks that all processors have spent: idle, and in all.
type Times = (u64, u64);

fn times() -> Option<Times> {
    stat(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line of proc(5)'s `stat`: user nice system idle iowait irq softirq steal. What guests
/// used is in user already.
fn stat(text: &str) -> Option<Times> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let numbers: Vec<u64> = numbers.map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = numbers.get(3)? + numbers.get(4).unwrap_or(&0);
    Some((idle, numbers.iter().sum()))
}

/// A worker that looks for what comes next instead of sleeping is not busy.
fn less_looks((idle, all): Times, looked: Duration) -> Times {
    let ticks =
        looked.as_nanos() * u128::from(rustix::param::clock_ticks_per_second()) / 1_000_000_000;
    (idle.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX)), all)
}

/// In thousandths.
fn busy((idle, all): Times, (idle_now, all_now): Times) -> u32 {
    let (idle, all) = (idle_now.saturating_sub(idle), all_now.saturating_sub(all));
    let busy = (all.saturating_sub(idle) * 1_000).checked_div(all).unwrap_or(0);
    u32::try_from(busy).unwrap_or(1_000)
}

/// The average over one minute, in thousandths.
fn load(text: &str) -> Option<u32> {
    let (whole, part) = text.split_ascii_whitespace().next()?.split_once('.')?;
    let hundredths: u32 = part.get(..2)?.parse().ok()?;
    whole.parse::<u32>().ok()?.checked_mul(1_000)?.checked_add(hundredths * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_lines_are_understood() {
        let text = "cpu  100 5 45 800 40 3 7 0 9 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(stat(text), Some((840, 1000)));
        assert_eq!(stat("intr 5"), None);
        assert_eq!(busy((840, 1000), (840, 1100)), 1_000);
        assert_eq!(busy((840, 1000), (890, 1100)), 500);
        assert_eq!(busy((840, 1000), (840, 1000)), 0);
        let ticks = rustix::param::clock_ticks_per_second();
        let looked = less_looks((840, 1100), Duration::from_millis(2500));
        assert_eq!(looked, (840 + ticks * 5 / 2, 1100));
        // The two are counted by different clocks.
        assert_eq!(busy((840, 1000), (941, 1100)), 0);
        assert_eq!(load("12.34 5.00 1.00 3/200 12345\n"), Some(12_340));
        assert_eq!(load(""), None);
        assert!(times().is_some() && fs::read_to_string("/proc/loadavg").is_ok());
    }
}

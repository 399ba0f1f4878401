//! How much time is left, as clients and servers are told and tell.

use std::time::Duration;

use sluice_config::DeadlineHeader;

use super::fields::Kind;
use super::head::Head;

/// Take the field off the request, and what it says for how long the client will wait. What cannot
/// be understood says nothing.
pub(crate) fn read(head: &mut Head, header: &DeadlineHeader) {
    let Head { text, fields, kinds, patience, .. } = head;
    for (kind, field) in kinds.iter_mut().zip(fields) {
        let bytes = |(from, to): (u32, u32)| text.get(from as usize..to as usize);
        let name = bytes(field.name).unwrap_or_default();
        if *kind != Kind::Plain || !name.eq_ignore_ascii_case(header.name().as_bytes()) {
            continue;
        }
        *kind = Kind::Drop;
        let value = bytes(field.value).unwrap_or_default();
        let said = match header.is_grpc() {
            true => grpc(value),
            false => number(value).map(Duration::from_millis),
        };
        *patience = [*patience, said.filter(|said| !said.is_zero())].into_iter().flatten().min();
    }
}

/// Append the field. Never more than is left, and never nothing, which some take for no bound.
pub(crate) fn write(out: &mut Vec<u8>, header: &DeadlineHeader, left: Duration) {
    let ms = u32::try_from(left.as_millis()).unwrap_or(MILLIS_MAX).clamp(1, MILLIS_MAX);
    out.extend_from_slice(header.name().as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(itoa::Buffer::new().format(ms).as_bytes());
    out.extend_from_slice(if header.is_grpc() { b"m\r\n" } else { b"\r\n" });
}

/// gRPC's form: up to eight digits and a unit.
fn grpc(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    let number = number(digits).filter(|_| digits.len() <= 8)?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    // Longer ones are longer than any route waits.
    let plain = digits.len() <= 15 && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

/// gRPC takes eight digits.
const MILLIS_MAX: u32 = 99_999_999;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_understood_is_a_number_or_what_grpc_writes() {
        let ms = |ms| Some(Duration::from_millis(ms));
        for (text, plain, as_grpc) in [
            ("250", ms(250), None),
            ("250m", None, ms(250)),
            ("2S", None, ms(2000)),
            ("1H", None, ms(3_600_000)),
            ("123456789m", None, None),
            ("-1", None, None),
            ("+1", None, None),
            ("1.5", None, None),
            ("", None, None),
            ("9999999999999999999", None, None),
            ("soon", None, None),
        ] {
            let found = number(text.as_bytes()).map(Duration::from_millis);
            assert_eq!((found, grpc(text.as_bytes())), (plain, as_grpc), "{text:?}");
        }
    }
}

//! When a certificate expires, out of its bytes: as much of X.509 in DER as lies before that.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// The kinds of elements that matter on the way.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// The bit that tells the number of bytes that hold a length from a length, and how many of them a certificate may need.
const LONG: u8 = 0x80;
const LENGTH_BYTES_MAX: usize = 4;
/// Years of two digits from this one on are of the last century (RFC 5280, 4.1.2.5.1).
const LAST_CENTURY: i8 = 50;

/// The end of a certificate's validity; `None` for what is no certificate.
pub(super) fn expiry(certificate: &[u8]) -> Option<Timestamp> {
    let (mut facts, _signature) = sequence(sequence(certificate)?.0)?;
    // Left out by certificates of the first version.
    if facts.first() == Some(&VERSION) {
        facts = element(facts)?.rest;
    }
    for _passed_over in ["serial number", "algorithm", "issuer"] {
        facts = element(facts)?.rest;
    }
    let (validity, _subject_and_more) = sequence(facts)?;
    let begin = element(validity)?;
    let end = element(begin.rest)?;
    moment(end.kind, end.content)
}

/// What the bytes begin with.
struct Element<'a> {
    kind: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&[kind, length], mut rest) = bytes.split_first_chunk()?;
    let mut length = usize::from(length);
    if length >= usize::from(LONG) {
        let (digits, behind) = rest.split_at_checked(length - usize::from(LONG))?;
        if digits.len() > LENGTH_BYTES_MAX {
            return None;
        }
        length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
        rest = behind;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    Some(Element { kind, content, rest })
}

/// What is within the sequence at the beginning, and what is behind it.
fn sequence(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    element(bytes).filter(|found| found.kind == SEQUENCE).map(|found| (found.content, found.rest))
}

/// A moment as `YYMMDDhhmmssZ` or, with a year of four digits, as the other kind.
fn moment(kind: u8, text: &[u8]) -> Option<Timestamp> {
    let (pairs, []) = text.strip_suffix(b"Z")?.as_chunks() else { return None };
    let pairs = pairs.iter().copied().map(number).collect::<Option<Vec<_>>>()?;
    let (century, date) = match (kind, &*pairs) {
        (UTC_TIME, [year, ..]) => (if *year < LAST_CENTURY { 20 } else { 19 }, &*pairs),
        (GENERALIZED_TIME, [century, date @ ..]) => (*century, date),
        _ => return None,
    };
    let [year, month, day, hour, minute, second] = *date else { return None };
    let year = 100 * i16::from(century) + i16::from(year);
    let moment = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    // The last second of the year 9999, which stands for no end at all, is beyond the last that can be told.
    Some(Offset::UTC.to_timestamp(moment).unwrap_or(Timestamp::MAX))
}

fn number(digits: [u8; 2]) -> Option<i8> {
    let [tens, ones] = digits.map(|digit| digit.is_ascii_digit().then(|| (digit - b'0').cast_signed()));
    Some(10 * tens? + ones?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(kind: u8, contents: &[&[u8]]) -> Vec<u8> {
        let content = contents.concat();
        let length = match u8::try_from(content.len()) {
            Ok(length @ 0..0x80) => vec![length],
            Ok(length) => vec![0x81, length],
            Err(_) => [&[0x82][..], &u16::try_from(content.len()).expect("a short text").to_be_bytes()].concat(),
        };
        [vec![kind], length, content].concat()
    }

    /// A certificate that ends then, with an issuer's name of so many bytes.
    fn certificate(version: &[u8], issuer: usize, kind: u8, end: &str) -> Vec<u8> {
        let begin = der(UTC_TIME, &[b"200101000000Z"]);
        let validity = der(SEQUENCE, &[&begin, &der(kind, &[end.as_bytes()])]);
        let (serial, algorithm, issuer) =
            (der(2, &[&[1]]), der(SEQUENCE, &[&[5, 0]]), der(SEQUENCE, &[&vec![0; issuer]]));
        let signed = der(SEQUENCE, &[version, &serial, &algorithm, &issuer, &validity, &der(SEQUENCE, &[])]);
        der(SEQUENCE, &[&signed, &algorithm, &der(3, &[&[0; 64]])])
    }

    fn seconds(certificate: &[u8]) -> Option<i64> {
        expiry(certificate).map(Timestamp::as_second)
    }

    #[test]
    fn the_end_is_found_behind_parts_of_every_size() {
        let third = der(VERSION, &[&der(2, &[&[2]])]);
        for version in [&third[..], &[]] {
            for issuer in [0, 20, 200, 40_000] {
                let certificate = certificate(version, issuer, UTC_TIME, "270102030405Z");
                assert_eq!(seconds(&certificate), Some(1_798_859_045), "{issuer}");
            }
        }
    }

    #[test]
    fn moments_of_every_form() {
        let seconds = |kind, text| seconds(&certificate(&[], 10, kind, text));
        assert_eq!(seconds(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(seconds(UTC_TIME, "500101000000Z"), Some(-631_152_000));
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(seconds(GENERALIZED_TIME, "99991231235959Z"), Some(Timestamp::MAX.as_second()));
        let wrong = ["", "Z", "270102030405", "2701020304Z", "27010203040Z", "271302030405Z", "+70102030405Z"];
        for text in wrong.into_iter().chain(["270230030405Z", "27010203040506Z"]) {
            assert_eq!(seconds(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(seconds(GENERALIZED_TIME, "270102030405Z"), None);
        assert_eq!(seconds(4, "270102030405Z"), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let whole = certificate(&[], 200, UTC_TIME, "270102030405Z");
        for length in 0..whole.len() {
            assert_eq!(seconds(&whole[..length]), None, "the first {length} bytes");
        }
        assert_eq!(seconds(&[SEQUENCE, 0x85, 0, 0, 0, 0, 0]), None);
        assert_eq!(seconds(&[SEQUENCE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        let not_a_sequence = [&[0x31], &whole[1..]].concat();
        assert_eq!(seconds(&not_a_sequence), None);
    }
}

//! Expiry time of a certificate.

use jiff::Timestamp;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode as _, SliceReader, Tag, Tagged as _};
use x509_cert::time::Time;

/// Returns the expiry time of a certificate in DER; `None` if it is not a certificate.
///
/// Only the fields up to the validity are decoded: a certificate that the TLS library accepts may have names, extensions and
/// serial numbers that a strict decoder rejects.
pub(super) fn expiry(certificate: &[u8]) -> Option<Timestamp> {
    let certificate = AnyRef::from_der(certificate).ok()?;
    let signed = AnyRef::decode(&mut SliceReader::new(certificate.value()).ok()?).ok()?;
    let mut fields = SliceReader::new(signed.value()).ok()?;
    let mut next = || AnyRef::decode(&mut fields).ok();
    let first = next()?;
    if matches!(first.tag(), Tag::ContextSpecific { .. }) {
        // It was the version; the serial number follows.
        next()?;
    }
    let (_algorithm, _issuer, validity) = (next()?, next()?, next()?);
    let mut times = SliceReader::new(validity.value()).ok()?;
    AnyRef::decode(&mut times).ok()?;
    let end = Time::decode(&mut times).ok()?.to_unix_duration().as_secs();
    // The last second of the year 9999, which means that the certificate never expires, is beyond the last timestamp.
    Some(i64::try_from(end).ok().and_then(|end| Timestamp::from_second(end).ok()).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEQUENCE: u8 = 0x30;
    const UTC_TIME: u8 = 0x17;
    const GENERALIZED_TIME: u8 = 0x18;

    fn der(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
        let content = contents.concat();
        let length = match u8::try_from(content.len()).expect("a short text") {
            length @ 0..0x80 => vec![length],
            length => vec![0x81, length],
        };
        [vec![tag], length, content].concat()
    }

    /// A certificate with an extension whose object identifier is beyond what a strict decoder accepts.
    fn certificate(tag: u8, end: &str) -> Vec<u8> {
        let version = der(0xa0, &[&der(2, &[&[2]])]);
        let serial = der(2, &[&[1; 24]]);
        let ecdsa_with_sha256 = der(SEQUENCE, &[&der(6, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]])]);
        let name = der(SEQUENCE, &[]);
        let validity = der(SEQUENCE, &[&der(UTC_TIME, &[b"650101000000Z"]), &der(tag, &[end.as_bytes()])]);
        let bits = der(3, &[&[0; 9]]);
        let key = der(SEQUENCE, &[&ecdsa_with_sha256, &bits]);
        let uuid = der(6, &[&[0x69, 0x83, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]]);
        let extension = der(SEQUENCE, &[&uuid, &der(4, &[&[0]])]);
        let extensions = der(0xa3, &[&der(SEQUENCE, &[&extension])]);
        let signed =
            der(SEQUENCE, &[&version, &serial, &ecdsa_with_sha256, &name, &validity, &name, &key, &extensions]);
        der(SEQUENCE, &[&signed, &ecdsa_with_sha256, &bits])
    }

    #[test]
    fn both_time_types_are_decoded() {
        let seconds = |tag, end| expiry(&certificate(tag, end)).map(Timestamp::as_second);
        assert_eq!(seconds(UTC_TIME, "270102030405Z"), Some(1_798_859_045));
        assert_eq!(seconds(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(seconds(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(seconds(GENERALIZED_TIME, "99991231235959Z"), Some(Timestamp::MAX.as_second()));
        assert_eq!(seconds(UTC_TIME, "271302030405Z"), None);
    }

    #[test]
    fn truncated_certificate_has_no_expiry() {
        let whole = certificate(UTC_TIME, "270102030405Z");
        for length in 0..whole.len() {
            assert_eq!(expiry(&whole[..length]), None, "the first {length} bytes");
        }
    }
}

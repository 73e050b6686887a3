//! Cursors of paged lists. They are opaque to clients, have a checksum, and grant no access.

use std::fmt::Write as _;

use plantstore_model::plant::PlantId;
use plantstore_model::user::UserName;

/// The last plant of a page, after which the next begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cursor {
    pub(crate) id: PlantId,
    /// The owner of that plant; `None` in the list of a single owner.
    pub(crate) owner: Option<UserName>,
}

/// Format of the rest of the cursor.
const ID_ALONE: &str = "01";
const ID_AND_OWNER: &str = "02";
const ID_CHARS: usize = 16;
const CHECKSUM_CHARS: usize = 8;

impl Cursor {
    pub(crate) fn encode(&self) -> String {
        let kind = if self.owner.is_some() { ID_AND_OWNER } else { ID_ALONE };
        let mut text = format!("{kind}{:016x}", self.id.get());
        for byte in self.owner.iter().flat_map(|owner| owner.as_str().bytes()) {
            // Writing to memory cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str(&checksum(&text));
        text
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let (body, _checksum) = text.split_at_checked(text.len().checked_sub(CHECKSUM_CHARS)?)?;
        let (kind, rest) = body.split_at_checked(ID_ALONE.len())?;
        let (id, owner) = rest.split_at_checked(ID_CHARS)?;
        let id = u64::from_str_radix(id, 16).ok().map(|bits| PlantId::new(bits.cast_signed()))?;
        let owner = if kind == ID_AND_OWNER { Some(UserName::parse(&decode_hex(owner)?).ok()?) } else { None };
        // Rejects a wrong checksum, other spellings of the digits, and trailing characters.
        let cursor = Self { id, owner };
        (cursor.encode() == text).then_some(cursor)
    }
}

fn decode_hex(digits: &str) -> Option<String> {
    let bytes = digits.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

fn checksum(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_changed_ones_are_rejected() {
        for (id, owner) in
            [i64::MIN, -1, 0, 1, 42, i64::MAX].into_iter().zip([None, Some("ada"), Some("Åsa")].iter().cycle())
        {
            let owner = owner.map(|name| UserName::parse(name).expect("a name"));
            let cursor = Cursor { id: PlantId::new(id), owner };
            let text = cursor.encode();
            assert_eq!(Cursor::decode(&text), Some(cursor));
            for index in 0..text.len() {
                let mut changed = text.clone().into_bytes();
                changed[index] = if changed[index] == b'0' { b'1' } else { b'0' };
                assert_eq!(Cursor::decode(std::str::from_utf8(&changed).expect("ascii")), None);
            }
        }
    }

    #[test]
    fn malformed_cursors_are_rejected() {
        let with_checksum = |body: &str| format!("{body}{}", checksum(body));
        let bodies = [
            "",
            "01",
            "02",
            "0100000000000000",
            "01000000000000002a61",
            "02000000000000002a",
            "02000000000000002a6",
            "02000000000000002aff",
            "02000000000000002a+1",
            "03000000000000002a",
            "01000000000000é",
            "01+00000000000002a",
        ];
        let without_checksum = ["", "0", "é", "ééééééééééééé", "01000000000000002a"];
        for malformed in bodies.map(with_checksum).iter().map(String::as_str).chain(without_checksum) {
            assert_eq!(Cursor::decode(malformed), None, "{malformed}");
        }
    }
}

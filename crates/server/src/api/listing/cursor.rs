//! Cursors: opaque to clients, without authority, and refused when anything in them was changed.

use std::fmt::Write as _;

use plantstore_model::plant::PlantId;
use plantstore_model::user::UserName;

/// The last plant of a page, after which the next begins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cursor {
    pub(crate) id: PlantId,
    /// Whose plant it is, where the list is of several owners.
    pub(crate) owner: Option<UserName>,
}

/// How the rest is to be read.
const ID_ALONE: &str = "01";
const ID_AND_OWNER: &str = "02";
/// Characters of an id, and of the check.
const ID_CHARS: usize = 16;
const CHECK_CHARS: usize = 8;

impl Cursor {
    pub(crate) fn encode(&self) -> String {
        let kind = if self.owner.is_some() { ID_AND_OWNER } else { ID_ALONE };
        let mut text = format!("{kind}{:016x}", self.id.get());
        for byte in self.owner.iter().flat_map(|owner| owner.as_str().bytes()) {
            // Writing to memory does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str(&check(&text));
        text
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let (body, _check) = text.split_at_checked(text.len().checked_sub(CHECK_CHARS)?)?;
        let (kind, rest) = body.split_at_checked(ID_ALONE.len())?;
        let (id, owner) = rest.split_at_checked(ID_CHARS)?;
        let id = u64::from_str_radix(id, 16).ok().map(|bits| PlantId::new(bits.cast_signed()))?;
        let owner = if kind == ID_AND_OWNER { Some(UserName::parse(&text_of(owner)?).ok()?) } else { None };
        // Whatever else would read the same: the check, digits written otherwise, something left over.
        let cursor = Self { id, owner };
        (cursor.encode() == text).then_some(cursor)
    }
}

/// The text whose bytes are written as pairs of digits.
fn text_of(digits: &str) -> Option<String> {
    let bytes = digits.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(bytes.collect::<Option<_>>()?).ok()
}

fn check(body: &str) -> String {
    format!("{:08x}", crc32fast::hash(body.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_refuse_changes() {
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
    fn garbage_is_no_cursor() {
        let sealed = |body: &str| format!("{body}{}", check(body));
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
        for garbage in
            bodies.map(sealed).iter().map(String::as_str).chain(["", "0", "é", "ééééééééééééé", "01000000000000002a"])
        {
            assert_eq!(Cursor::decode(garbage), None, "{garbage}");
        }
    }
}

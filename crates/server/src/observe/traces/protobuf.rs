//! The part of the protobuf wire format that OTLP needs: writing messages, and reading the fields of small ones.
//!
//! A field is a tag (its number and wire type) and a value. Fields with their default value are left out, as encoders of
//! proto3 do.

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// An encoded message. Fields are written in ascending order by the caller.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn uint64(&mut self, field: u32, value: u64) -> &mut Self {
        if value != 0 {
            self.tag(field, VARINT);
            self.write_varint(value);
        }
        self
    }

    /// Writes a field even if it has its default value, as members of a `oneof` are written.
    pub(super) fn present_int64(&mut self, field: u32, value: i64) -> &mut Self {
        self.tag(field, VARINT);
        self.write_varint(value.cast_unsigned());
        self
    }

    pub(super) fn fixed64(&mut self, field: u32, value: u64) -> &mut Self {
        if value != 0 {
            self.tag(field, FIXED64);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
        self
    }

    pub(super) fn fixed32(&mut self, field: u32, value: u32) -> &mut Self {
        if value != 0 {
            self.tag(field, FIXED32);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
        self
    }

    /// Writes a field of type `bytes` or `string`.
    pub(super) fn bytes(&mut self, field: u32, value: impl AsRef<[u8]>) -> &mut Self {
        if value.as_ref().is_empty() { self } else { self.present_bytes(field, value) }
    }

    /// Writes a field even if it is empty, as messages and members of a `oneof` are written.
    pub(super) fn present_bytes(&mut self, field: u32, value: impl AsRef<[u8]>) -> &mut Self {
        self.tag(field, LENGTH_DELIMITED);
        self.write_varint(value.as_ref().len() as u64);
        self.0.extend_from_slice(value.as_ref());
        self
    }

    pub(super) fn message(&mut self, field: u32, value: &Self) -> &mut Self {
        self.present_bytes(field, &value.0)
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn tag(&mut self, field: u32, wire_type: u64) {
        self.write_varint(u64::from(field) << 3 | wire_type);
    }

    fn write_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }
}

/// Value of a field, as far as the wire format shows its type.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Returns the last value of a field, which is the one that counts. Malformed messages have no fields after the mistake.
pub(super) fn field(message: &[u8], wanted: u32) -> Option<Value<'_>> {
    let (mut rest, mut found) = (message, None);
    while let Some((number, value)) = next_field(&mut rest) {
        if number == u64::from(wanted) {
            found = Some(value);
        }
    }
    found
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u64, Value<'a>)> {
    let tag = read_varint(rest)?;
    let value = match tag & 7 {
        VARINT => Value::Number(read_varint(rest)?),
        FIXED64 => Value::Number(u64::from_le_bytes(*rest.split_off(..8)?.first_chunk()?)),
        FIXED32 => Value::Number(u32::from_le_bytes(*rest.split_off(..4)?.first_chunk()?).into()),
        LENGTH_DELIMITED => {
            let length = usize::try_from(read_varint(rest)?).ok()?;
            Value::Bytes(rest.split_off(..length)?)
        }
        _ => return None,
    };
    Some((tag >> 3, value))
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_the_specification_shows() {
        let mut inner = Message::default();
        inner.uint64(1, 150);
        let mut message = Message::default();
        message
            .uint64(1, 0)
            .bytes(2, "testing")
            .message(3, &inner)
            .fixed64(4, 1)
            .fixed32(16, 0x101)
            .present_int64(17, -1);
        let expected: &[&[u8]] = &[
            b"\x12\x07testing",
            b"\x1a\x03\x08\x96\x01",
            b"\x21\x01\0\0\0\0\0\0\0",
            b"\x85\x01\x01\x01\0\0",
            b"\x88\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ];
        assert_eq!(message.into_bytes(), expected.concat());
    }

    #[test]
    fn fields_are_read_back() {
        let mut message = Message::default();
        message.uint64(1, u64::MAX).bytes(2, "first").fixed64(3, 3).fixed32(4, 4).bytes(2, "last");
        let message = message.into_bytes();
        assert_eq!(field(&message, 1), Some(Value::Number(u64::MAX)));
        assert_eq!(field(&message, 2), Some(Value::Bytes(b"last")));
        assert_eq!([field(&message, 3), field(&message, 4)], [Some(Value::Number(3)), Some(Value::Number(4))]);
        assert_eq!(field(&message, 5), None);
    }

    #[test]
    fn malformed_messages_have_no_fields() {
        for malformed in [&b"\x08"[..], b"\x08\x80", b"\x12\x05abc", b"\x09\x01", b"\x0d\x01", b"\x0b", &[0xff; 11]] {
            assert_eq!([1, 2].map(|number| field(malformed, number)), [None, None], "{malformed:?}");
        }
    }
}

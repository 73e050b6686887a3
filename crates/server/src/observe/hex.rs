//! Hexadecimal digits for response headers.

/// Fills `digits` with a number, padded with zeros. Leading digits that do not fit are left out.
pub(crate) fn write_hex(mut number: u128, digits: &mut [u8]) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_padded_or_truncated() {
        let text = |number| {
            let mut digits = [0; 4];
            write_hex(number, &mut digits);
            String::from_utf8(digits.to_vec()).expect("digits")
        };
        assert_eq!([0, 0xab, 0x1234, 0xf_1234].map(text), ["0000", "00ab", "1234", "1234"]);
    }
}

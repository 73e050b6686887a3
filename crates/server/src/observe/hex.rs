//! Numbers as every answer has some: in base 16.

/// Fills `digits` with a number. Only its last digits, where there is no room for all.
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
    fn numbers_fill_their_place() {
        let text = |number| {
            let mut digits = [0; 4];
            write_hex(number, &mut digits);
            String::from_utf8(digits.to_vec()).expect("digits")
        };
        assert_eq!([0, 0xab, 0x1234, 0xf_1234].map(text), ["0000", "00ab", "1234", "1234"]);
    }
}

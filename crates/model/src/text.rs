//! Texts and bytes as they are shown: characters that are invisible or look like a blank, and hexadecimal digits.

use std::fmt;
use std::ops::RangeInclusive;

/// The property `Default_Ignorable_Code_Point` of Unicode 16.0 (DerivedCoreProperties.txt), with the code points that are
/// reserved for it, in ascending order.
const DEFAULT_IGNORABLE: [RangeInclusive<char>; 17] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fff8}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Characters outside that property whose glyph is empty in Unicode 16.0: the braille pattern without dots, the anchors of
/// interlinear annotations and the placeholder of an object, the controls of Egyptian hieroglyphs, the filler of the Khitan small
/// script, and the null note head.
const BLANK: [RangeInclusive<char>; 5] = [
    '\u{2800}'..='\u{2800}',
    '\u{fff9}'..='\u{fffc}',
    '\u{13430}'..='\u{13440}',
    '\u{16fe4}'..='\u{16fe4}',
    '\u{1d159}'..='\u{1d159}',
];

/// Checks that a character is white space, a control character, or in one of the tables above.
pub(crate) fn is_invisible(character: char) -> bool {
    let tables = || DEFAULT_IGNORABLE.iter().chain(&BLANK);
    !character.is_ascii_graphic()
        && (character.is_whitespace() || character.is_control() || tables().any(|range| range.contains(&character)))
}

/// Text that others wrote, in the form in which it is shown on a terminal and in the log: invisible characters, except blanks,
/// are escaped as in JSON. So a name can neither control the terminal nor look like another. Escaping twice changes nothing.
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| write_escaped(character, formatter))
    }
}

/// Bytes as hexadecimal digits.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

/// Writes a character in the form of [`Escaped`].
pub fn write_escaped(character: char, output: &mut impl fmt::Write) -> fmt::Result {
    if character == ' ' || !is_invisible(character) {
        return output.write_char(character);
    }
    if character == '\n' {
        return output.write_str("\\n");
    }
    character.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(output, "\\u{unit:04x}"))
}

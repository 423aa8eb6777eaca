"""The version of this package; rooms below the face import it from here."""

VERSION = "0.2.0"

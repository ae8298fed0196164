"""The Execbox protocol: messages, host side and runner side."""

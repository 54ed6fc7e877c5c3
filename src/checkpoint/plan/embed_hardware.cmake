# Writes the hardware catalogue as a C++ string: cmake -DINPUT=... -DOUTPUT=... -P embed_hardware.cmake
file(READ "${INPUT}" text)
# Pieces stay under the longest string literal that compilers must accept.
set(body "")
string(LENGTH "${text}" length)
set(at 0)
while(at LESS length)
  string(SUBSTRING "${text}" ${at} 8000 piece)
  string(APPEND body "R\"hardware(${piece})hardware\"\n")
  math(EXPR at "${at} + 8000")
endwhile()
file(WRITE "${OUTPUT}" "#include \"checkpoint/plan/hardware.h\"\n\nnamespace pivot {\n\nstd::string_view embedded_hardware_json() {\n  return\n${body};\n}\n\n}  // namespace pivot\n")

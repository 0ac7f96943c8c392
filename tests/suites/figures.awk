# figures.awk: the common part of the reports on two settings that were measured in turns, to be read after sorted.awk
# and before the report's own file. The lines are of row, setting and microseconds per message, one for each repetition.

{
  if (!($1 in known)) rows[++row_count] = $1
  known[$1]
  key = $1 "," $2
  value[key, ++count[key]] = $3 + 0
}

# Returns the range of a row's figures in a setting, with so many digits; sets `median` (of an even number the upper
# one).
function weigh(key, digits,    list, i, format) {
  for (i = 1; i <= count[key]; i++) list[i] = value[key, i]
  sorted(list, count[key])
  median = list[int(count[key] / 2) + 1]
  format = "(%." digits "f-%." digits "f)"
  return sprintf(format, list[1], list[count[key]])
}

# Compares two settings of a row: returns the columns of both with so many digits, and sets `ratio`, the first median
# divided by the second. Returns nothing, and sets `wrong`, if a setting has no figures.
function compared(row, first, second, digits, width,    first_range, first_median, second_range, format) {
  if (!count[row "," first] || !count[row "," second]) {
    wrong = 1
    return ""
  }
  first_range = weigh(row "," first, digits)
  first_median = median
  second_range = weigh(row "," second, digits)
  ratio = first_median / median
  format = "%10." digits "f %" width "s %10." digits "f %" width "s"
  return sprintf(format, first_median, first_range, median, second_range)
}

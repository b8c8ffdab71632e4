#!/bin/bash
cat > greet.sh << 'END'
echo "Hello, $1!"
END
